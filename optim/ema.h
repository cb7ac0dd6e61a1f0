// Exponential moving average of a model's weights and running statistics, kept in a second model that can be evaluated
// and saved like the first.
#pragma once

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "optim/optimizer.h"

namespace ht::optim {

struct EmaOptions {
  double decay = 0.999;  // a step
  int64_t every = 1;     // steps between updates, which then decay by decay^every: a pass over all weights costs time
};

// By how much an update moves the average towards the model: 1 - decay^every, but in the first steps at least
// 9 / (10 + n) in update n, so that the average forgets the first weights sooner than by its decay alone.
HT_HD inline double ema_rate(const EmaOptions& o, int64_t applied_steps) {
  const double n = static_cast<double>(applied_steps / o.every);
  return std::fmax(1 - std::pow(o.decay, static_cast<double>(o.every)), 9 / (10 + n));
}

class Ema {
 public:
  // `average` is a model of the same build, in FP32 (f64 for f64); it becomes a copy of `model`, on its device. `model`
  // and `optimizer`, whose steps it follows, must live as long. Throws Error on a decay outside [0, 1), every below 1,
  // or another build.
  Ema(Module& model, std::unique_ptr<Module> average, const Optimizer& optimizer, const EmaOptions& options);

  // After optimizer.step(), the step'th: average += rate * (model - average), every so often. A skipped step changes
  // nothing. No host read.
  void update(int64_t step);
  // The average.
  Module& model() const;

 private:
  struct Pair {
    Var source, average;
  };
  const Optimizer& optimizer_;
  std::unique_ptr<Module> average_;
  EmaOptions options_;
  std::vector<Pair> averaged_, copied_;  // copied: integer buffers
};

// average[i] and source[i] of the same shape.
struct EmaItem {
  Tensor average, source;
  int64_t numel() const { return source.numel(); }
};
// The CUDA side (optim/ema.cu). `record` null: no step is ever skipped.
void ema_cuda(const EmaOptions& options, std::span<const EmaItem> items, const Tensor& applied,
              const StepRecord* record);

}  // namespace ht::optim
