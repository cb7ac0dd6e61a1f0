// What the user asks of amp, and what follows from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "amp/policy.h"

namespace ht::amp {

// Apex's levels, and two methods with names of their own.
//         weights                 casts                    masters     loss scale
//   O0    FP32                    none                     -           1 (amp does nothing)
//   O1    FP32, half copies kept  each op by the lists     -           dynamic
//   O2    half, batch norm FP32   the model's in- and output  FP32     dynamic
//   O3    half                    the model's in- and output  none     1
//   fp16  O2 with a loss scale of 128, as Apex's FP16_Optimizer
//   bf16  O1 in bf16 without a loss scale
enum class Level : uint8_t { O0, O1, O2, O3, fp16, bf16 };
using enum Level;
std::string_view name_of(Level level);
Level parse_level(std::string_view text);  // throws Error on an unknown name

// A number, or `dynamic`.
struct LossScale {
  LossScale(double number) : value(number) {}
  double value;
  bool is_dynamic() const { return value == 0; }
};
inline constexpr double dynamic = 0;
LossScale parse_loss_scale(std::string_view text);  // "dynamic" or a number; throws Error

struct Override {
  std::string op;
  AmpTag tag = AmpTag::leave;
  std::string reason = "set by the user";
};

// Fields without a value follow from the level.
struct Options {
  Level level = Level::O1;
  bool enabled = true;                           // false: as O0, whatever else is set
  std::optional<DType> dtype = {};               // f16 or bf16
  std::optional<bool> keep_batchnorm_fp32 = {};  // O2, O3, fp16
  std::optional<bool> master_weights = {};       // O2, O3, fp16
  std::optional<bool> cast_model_outputs = {};   // to FP32: O2, O3, fp16
  std::optional<LossScale> loss_scale = {};
  int num_losses = 1;  // a scaler each
  double init_scale = 65536;
  double min_loss_scale = 1;
  double max_loss_scale = 16777216;  // 2^24
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  int64_t max_consecutive_skips = 50;
  std::vector<Override> overrides = {};  // O1, bf16
  std::string policy_file = {};          // O1, bf16: read before the overrides
};

// The options with every choice made.
struct Settings {
  Level level = Level::O1;
  bool enabled = true;
  DType dtype = DType::f16;
  bool casts_ops = true;      // by the lists
  bool half_weights = false;  // and casts around the model
  bool keep_batchnorm_fp32 = true;
  bool master_weights = false;
  bool cast_model_outputs = false;
  bool dynamic_scale = true;
  double scale = 65536;  // the first, or the only one
  Policy policy = {};
};
// Throws Error naming both options where two contradict each other, and one with a value out of range.
Settings resolve(const Options& options);

}  // namespace ht::amp
