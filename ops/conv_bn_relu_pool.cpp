// max_pool2d(relu(batch_norm(conv2d(x, weight, bias)))), windows of 2x2.
#include "ops/fused.h"
#include "ops/registry.h"

namespace ht {

namespace {
std::vector<Sample> samples() {
  return conv_norm_samples({{{2, 3, 4, 3}, {2, 3, 3, 3}, {2}, {2}}, {{1, 4, 5, 2}, {3, 1, 1, 2}, {3}, {3}, {3}}},
                           conv_bn_relu_pool);
}
}  // namespace

const OpInfo conv_bn_relu_pool_info{"conv_bn_relu_pool",
                                    AmpTag::allow,
                                    "as conv2d; sums and statistics in FP32",
                                    samples,
                                    {ArgTag::by_tag, ArgTag::by_tag, ArgTag::keep, ArgTag::keep, ArgTag::by_tag},
                                    {"conv2d", "batch_norm", "relu", "max_pool2d"}};

Var conv_bn_relu_pool(const Var& x, const Var& weight, const Var& bias, const Var& gamma, const Var& beta,
                      const RunningStats& running, const Conv2dOptions& conv, const BatchNormOptions& options) {
  return fused_conv_norm(conv_bn_relu_pool_info, {.relu = true, .pool = true}, x, weight, bias, gamma, beta, running,
                         conv, options);
}

}  // namespace ht
