// d = x - t: y = sum or mean of d^2 / (2 beta) where |d| < beta, else |d| - beta / 2 (beta 0: l1_loss);
// dx = w dy (d / beta, else sign(d)), dt = -dx, w = 1 or 1 / n.
#include "ops/elementwise_loss.h"
#include "ops/ops.h"
#include "ops/registry.h"

namespace ht {

namespace {
struct SmoothL1Loss final : ElementwiseLoss<fn::SmoothL1> {
  using ElementwiseLoss::ElementwiseLoss;
  const OpInfo& info() const override { return smooth_l1_loss_info; }
};

std::vector<Sample> samples() {
  std::vector<Sample> all;
  for (Var (*f)(const Var&, const Var&, Reduction) :
       {+[](const Var&x, const Var&t, Reduction r) { return smooth_l1_loss(x, t, 1, r); },
        +[](const Var&x, const Var&t, Reduction r) { return smooth_l1_loss(x, t, 0.35, r); },
        +[](const Var&x, const Var&t, Reduction r) { return smooth_l1_loss(x, t, 0, r); }})
    for (Sample& s : elementwise_loss_samples(f, -1, 1, 0.1)) all.push_back(std::move(s));
  return all;
}
}  // namespace

const OpInfo smooth_l1_loss_info{"smooth_l1_loss", AmpTag::deny, "squares, and a sum over all elements", samples};

Var smooth_l1_loss(const Var& x, const Var& target, double beta, Reduction reduction) {
  check(beta >= 0, "smooth_l1_loss: beta is ", beta, " but must be 0 or more (", Named{"x", x.value()}, ")");
  return apply(SmoothL1Loss(reduction, fn::SmoothL1{beta}), {x, target});
}

}  // namespace ht
