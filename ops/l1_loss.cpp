// y = sum or mean of |x - t|;  dx = w dy sign(x - t), 0 at 0, dt = -dx, w = 1 or 1 / n.
#include "ops/elementwise_loss.h"
#include "ops/ops.h"
#include "ops/registry.h"

namespace ht {

namespace {
struct L1Loss final : ElementwiseLoss<fn::L1> {
  using ElementwiseLoss::ElementwiseLoss;
  const OpInfo& info() const override { return l1_loss_info; }
};

std::vector<Sample> samples() { return elementwise_loss_samples(l1_loss, -2, 2, 0.1); }
}  // namespace

const OpInfo l1_loss_info{"l1_loss", AmpTag::deny, "a sum over all elements, and 1 / n in its gradient", samples};

Var l1_loss(const Var& x, const Var& target, Reduction reduction) { return apply(L1Loss(reduction), {x, target}); }

}  // namespace ht
