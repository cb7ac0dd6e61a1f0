// relu(batch_norm(conv2d(x, weight, bias))).
#include "ops/fused.h"
#include "ops/registry.h"

namespace ht {

namespace {
std::vector<Sample> samples() {
  return conv_norm_samples({{{2, 3, 4, 3}, {2, 3, 3, 3}, {2}, {2}}, {{1, 3, 2, 2}, {3, 1, 1, 2}, {3}, {3}, {3}}},
                           conv_bn_relu);
}
}  // namespace

const OpInfo conv_bn_relu_info{"conv_bn_relu",
                               AmpTag::allow,
                               "as conv2d; sums and statistics in FP32",
                               samples,
                               {ArgTag::by_tag, ArgTag::by_tag, ArgTag::keep, ArgTag::keep, ArgTag::by_tag},
                               {"conv2d", "batch_norm", "relu"}};

Var conv_bn_relu(const Var& x, const Var& weight, const Var& bias, const Var& gamma, const Var& beta,
                 const RunningStats& running, const Conv2dOptions& conv, const BatchNormOptions& options) {
  return fused_conv_norm(conv_bn_relu_info, {.relu = true}, x, weight, bias, gamma, beta, running, conv, options);
}

}  // namespace ht
