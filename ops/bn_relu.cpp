// relu(batch_norm(x)). On CUDA one pass forward and two backward, with only x kept.
#include "ops/fused.h"
#include "ops/registry.h"

namespace ht {

namespace {
std::vector<Sample> samples() {
  return norm_samples({{{2, 3, 3, 2}, {2}, {2}}, {{1, 2, 2, 5}, {5}, {5}}, {{7, 1, 2, 1}, {1}, {1}}}, bn_relu);
}
}  // namespace

const OpInfo bn_relu_info{"bn_relu",
                          AmpTag::leave,
                          "sums and statistics in FP32 in any type",
                          samples,
                          {ArgTag::by_tag, ArgTag::keep, ArgTag::keep},
                          {"batch_norm", "relu"}};

Var bn_relu(const Var& x, const Var& gamma, const Var& beta, const RunningStats& running,
            const BatchNormOptions& options) {
  return fused_norm(bn_relu_info, {.relu = true}, x, gamma, beta, running, options);
}

}  // namespace ht
