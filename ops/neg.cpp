// y = -x;  dx = -dy.
#include "ops/ops.h"
#include "ops/pointwise.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Neg final : Pointwise<fn::Neg> {
  const OpInfo& info() const override { return neg_info; }
};

std::vector<Sample> samples() {
  return pointwise_samples([](const Var& x) { return neg(x); }, 0, 2);
}
}  // namespace

const OpInfo neg_info{"neg", AmpTag::leave, "exact in any type", samples};

Var neg(const Var& x) { return apply(Neg{}, {x}); }

}  // namespace ht
