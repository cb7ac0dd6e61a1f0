#include "amp/options.h"

#include <charconv>
#include <cmath>

namespace ht::amp {

namespace {
constexpr std::string_view kLevels[] = {"O0", "O1", "O2", "O3", "fp16", "bf16"};

void check_numbers(const Options& o) {
  const auto positive = [](std::string_view name, double value) {
    check(std::isfinite(value) && value > 0, "amp: ", name, " is ", value, "; it must be finite and positive");
  };
  check(o.num_losses >= 1 && o.num_losses <= 64, "amp: num_losses is ", o.num_losses, "; it must be 1 to 64");
  positive("min_loss_scale", o.min_loss_scale);
  positive("max_loss_scale", o.max_loss_scale);
  positive("init_scale", o.init_scale);
  check(o.min_loss_scale <= o.max_loss_scale, "amp: min_loss_scale ", o.min_loss_scale, " is above max_loss_scale ",
        o.max_loss_scale);
  check(o.init_scale >= o.min_loss_scale && o.init_scale <= o.max_loss_scale, "amp: init_scale ", o.init_scale,
        " is outside min_loss_scale ", o.min_loss_scale, " and max_loss_scale ", o.max_loss_scale);
  check(o.max_loss_scale <= 0x1p100, "amp: max_loss_scale is ", o.max_loss_scale, "; it must be at most 2^100");
  check(std::isfinite(o.growth_factor) && o.growth_factor > 1, "amp: growth_factor is ", o.growth_factor,
        "; it must be above 1");
  check(o.backoff_factor > 0 && o.backoff_factor < 1, "amp: backoff_factor is ", o.backoff_factor,
        "; it must be between 0 and 1");
  check(o.growth_interval >= 1, "amp: growth_interval is ", o.growth_interval, "; it must be at least 1");
  check(o.max_consecutive_skips >= 1, "amp: max_consecutive_skips is ", o.max_consecutive_skips,
        "; it must be at least 1");
}
}  // namespace

std::string_view name_of(Level level) { return kLevels[static_cast<int>(level)]; }

Level parse_level(std::string_view text) {
  for (int i = 0; i < 6; ++i)
    if (text == kLevels[i]) return static_cast<Level>(i);
  fail("amp: the level '", text, "' is unknown; use O0, O1, O2, O3, fp16 or bf16");
}

LossScale parse_loss_scale(std::string_view text) {
  if (text == "dynamic") return dynamic;
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc{} && stop == text.data() + text.size() && std::isfinite(value) && value > 0,
        "amp: the loss scale '", text, "' is neither 'dynamic' nor a positive number");
  return value;
}

Settings resolve(const Options& o) {
  Settings s{.level = o.level, .enabled = o.enabled && o.level != Level::O0};
  check_numbers(o);
  const auto clash = [&](bool both, const auto&... what) {
    check(!both, "amp: ", what..., " contradicts level ", name_of(o.level));
  };
  const bool lists = o.level == Level::O1 || o.level == Level::bf16;
  s.half_weights = o.level == Level::O2 || o.level == Level::O3 || o.level == Level::fp16;
  s.casts_ops = lists;
  s.dtype = o.dtype.value_or(o.level == Level::bf16 ? DType::bf16 : DType::f16);
  check(is_half(s.dtype), "amp: dtype ", s.dtype, " is not half; use f16 or bf16, or level O0 for FP32");
  clash(o.level == Level::O0 && o.dtype, "dtype ", s.dtype);
  clash(o.level == Level::fp16 && s.dtype != DType::f16, "dtype ", s.dtype);
  clash(o.level == Level::bf16 && s.dtype != DType::bf16, "dtype ", s.dtype);
  clash(!s.half_weights && o.keep_batchnorm_fp32, "keep_batchnorm_fp32 (all weights are FP32)");
  clash(!s.half_weights && o.master_weights, "master_weights (the weights themselves are FP32)");
  clash(!s.half_weights && o.cast_model_outputs, "cast_model_outputs (casts are made a op, not a model)");
  clash(!lists && !o.overrides.empty(), "overrides (no op's inputs are cast)");
  clash(!lists && !o.policy_file.empty(), "policy_file (no op's inputs are cast)");
  clash(o.level == Level::O0 && o.loss_scale, "loss_scale");
  s.keep_batchnorm_fp32 = o.keep_batchnorm_fp32.value_or(o.level != Level::O3);
  s.master_weights = o.master_weights.value_or(s.half_weights && o.level != Level::O3);
  s.cast_model_outputs = o.cast_model_outputs.value_or(s.half_weights);

  const bool unscaled = o.level == Level::O3 || s.dtype == DType::bf16;
  const LossScale scale = o.loss_scale.value_or(o.level == Level::fp16 ? 128.0 : unscaled ? 1.0 : dynamic);
  s.dynamic_scale = scale.is_dynamic();
  s.scale = s.dynamic_scale ? o.init_scale : scale.value;
  check(std::isfinite(s.scale) && s.scale > 0, "amp: loss_scale is ", s.scale,
        "; it must be finite and positive, or amp::dynamic");
  if (!o.policy_file.empty()) s.policy.load(o.policy_file);
  for (const Override& rule : o.overrides) s.policy.set(rule.op, rule.tag, rule.reason);
  return s;
}

}  // namespace ht::amp
