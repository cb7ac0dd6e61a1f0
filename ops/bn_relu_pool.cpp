// max_pool2d(relu(batch_norm(x))), windows of 2x2. On CUDA one pass forward and two backward, with only x kept.
#include "ops/fused.h"
#include "ops/registry.h"

namespace ht {

namespace {
std::vector<Sample> samples() {
  return norm_samples({{{2, 2, 4, 2}, {2}, {2}}, {{1, 3, 5, 3}, {3}, {3}}, {{3, 2, 2, 1}, {1}, {1}}}, bn_relu_pool);
}
}  // namespace

const OpInfo bn_relu_pool_info{"bn_relu_pool",
                               AmpTag::leave,
                               "sums and statistics in FP32 in any type",
                               samples,
                               {ArgTag::by_tag, ArgTag::keep, ArgTag::keep},
                               {"batch_norm", "relu", "max_pool2d"}};

Var bn_relu_pool(const Var& x, const Var& gamma, const Var& beta, const RunningStats& running,
                 const BatchNormOptions& options) {
  return fused_norm(bn_relu_pool_info, {.relu = true, .pool = true}, x, gamma, beta, running, options);
}

}  // namespace ht
