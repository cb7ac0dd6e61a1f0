// relu(batch_norm(conv2d(x, weight, bias))).
#include "ops/fused.h"
#include "ops/registry.h"

namespace ht {

namespace {
// The inputs of a sample: x, weight, gamma, beta and sometimes a bias.
Var convolve(std::span<const Var> in, const Conv2dOptions& conv) {
  return conv2d(in[0], in[1], in.size() > 4 ? in[4] : Var(), conv);
}

std::vector<Sample> samples() {
  return batch_norm_samples(
      {{{2, 3, 4, 3}, {2, 3, 3, 3}, {2}, {2}}, {{1, 3, 2, 2}, {3, 1, 1, 2}, {3}, {3}, {3}}}, 2,
      [](std::span<const Var> in, const RunningStats& running, const BatchNormOptions& options) {
        const Var y = convolve(in, {.padding = in[1].dim(1) / 2});
        return batch_norm(y, in[2], in[3], running, options);
      },
      [](std::span<const Var> in, const RunningStats& running, const BatchNormOptions& options) {
        return conv_bn_relu(in[0], in[1], in.size() > 4 ? in[4] : Var(), in[2], in[3], running,
                            {.padding = in[1].dim(1) / 2}, options);
      });
}
}  // namespace

// The bias comes last, so that every other input has its place.
const OpInfo conv_bn_relu_info{"conv_bn_relu",
                               AmpTag::allow,
                               "as conv2d; sums and statistics in FP32",
                               samples,
                               {ArgTag::by_tag, ArgTag::by_tag, ArgTag::keep, ArgTag::keep, ArgTag::by_tag},
                               {"conv2d", "batch_norm", "relu"}};

Var conv_bn_relu(const Var& x, const Var& weight, const Var& bias, const Var& gamma, const Var& beta,
                 const RunningStats& running, const Conv2dOptions& conv, const BatchNormOptions& options) {
  Fused op(conv_bn_relu_info);
  op.add(make_conv2d(conv), bias ? std::vector{0, 1, 4} : std::vector{0, 1});
  op.add_batch_norm(x.device(), running, options, {.relu = true}, Fused::kPrevious, 2, 3);
  return bias ? apply(std::move(op), {x, weight, gamma, beta, bias}) : apply(std::move(op), {x, weight, gamma, beta});
}

}  // namespace ht
