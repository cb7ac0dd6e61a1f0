// What half precision does to the numbers of one step: its casts, where it overflows first, how much underflows, how
// far each op is from FP32. For a person: it runs the step twice more and waits for the device.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "amp/amp.h"

namespace ht::amp {

// A parameter's gradient, from the FP32 run, against the range of the half dtype at the loss scale.
struct GradientGauge {
  std::string name;
  int64_t elements = 0, zeros = 0, flushed = 0, subnormal = 0;  // flushed: not zero, but zero in half
  double largest = 0;                                           // |g|, without the scale
  double headroom = 0;  // log2 of half's largest number over the largest scaled gradient; infinite when all are 0
  // How many elements have 2^(lowest + i) <= |g| * scale < 2^(lowest + i + 1).
  static constexpr int kLowest = -60, kExponents = 96;
  std::vector<int64_t> exponents;
};

// One op of the step, in order: relative L2 distance to its FP32 self. NaN where one of the two is not finite.
struct OpError {
  std::string op;        // "conv2d"
  std::string label;     // its parameters: "features.0.weight, features.0.bias"
  double output = 0;     // of y
  double gradient = -1;  // of dy, unscaled; -1: it had none
};

struct StepReport {
  double scale = 1;
  DType dtype = DType::f16;
  std::vector<CastRecord> casts = {};
  std::vector<GradientGauge> gradients = {};
  std::vector<OpError> errors = {};
  // "" or "first non-finite in the gradient of features.0.weight, in the backward of conv2d (tape index 12, scale
  // 65536); forward finite".
  std::string first_non_finite = {};

  // Of all gradients together.
  double least_headroom() const;
  double flushed_share() const;    // of the gradients that are not zero
  double subnormal_share() const;  // likewise
  double largest_output_error() const;
};

// Runs `loss`, a forward of one batch, and its backward under amp with a loss scale (0: the present one), then in FP32.
// Random numbers are those of the last step. Afterwards gradients, running statistics and random numbers are as before.
// Throws Error when amp is disabled.
StepReport examine(Amp& amp, const std::function<Var()>& loss, double scale = 0);

// Whole files or, on an Error, none. The plot shows, a row a parameter, the exponents of the scaled gradients with the
// range of the half dtype marked.
void write_json(const StepReport& report, const std::string& path);
void write_svg(const StepReport& report, const std::string& path);

}  // namespace ht::amp
