// y = sum or mean of max(x, 0) - x t + log(1 + e^-|x|);  dx = w dy (sigmoid(x) - t), dt = -w dy x, w = 1 or 1 / n.
#include "ops/elementwise_loss.h"
#include "ops/ops.h"
#include "ops/registry.h"

namespace ht {

namespace {
struct BceWithLogits final : ElementwiseLoss<fn::BinaryCrossEntropyWithLogits> {
  using ElementwiseLoss::ElementwiseLoss;
  const OpInfo& info() const override { return binary_cross_entropy_with_logits_info; }
};

std::vector<Sample> samples() { return elementwise_loss_samples(binary_cross_entropy_with_logits, 0, 1, 0.1); }
}  // namespace

const OpInfo binary_cross_entropy_with_logits_info{"binary_cross_entropy_with_logits", AmpTag::deny,
                                                   "small losses and s - t need FP32", samples};

Var binary_cross_entropy_with_logits(const Var& x, const Var& target, Reduction reduction) {
  return apply(BceWithLogits(reduction), {x, target});
}

}  // namespace ht
