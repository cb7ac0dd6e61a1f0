// y = sum or mean of (x - t)^2;  dx = w dy 2 (x - t), dt = -dx, w = 1 or 1 / n.
#include "ops/elementwise_loss.h"
#include "ops/ops.h"
#include "ops/registry.h"

namespace ht {

namespace {
struct MseLoss final : ElementwiseLoss<fn::Mse> {
  using ElementwiseLoss::ElementwiseLoss;
  const OpInfo& info() const override { return mse_loss_info; }
};

std::vector<Sample> samples() { return elementwise_loss_samples(mse_loss, -2, 2); }
}  // namespace

const OpInfo mse_loss_info{"mse_loss", AmpTag::deny, "squares leave half's range: 300^2 is inf", samples};

Var mse_loss(const Var& x, const Var& target, Reduction reduction) { return apply(MseLoss(reduction), {x, target}); }

}  // namespace ht
