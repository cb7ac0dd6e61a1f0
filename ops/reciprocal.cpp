// y = 1 / x;  dx = -dy y^2.
#include "ops/ops.h"
#include "ops/pointwise.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Reciprocal final : Pointwise<fn::Reciprocal> {
  const OpInfo& info() const override { return reciprocal_info; }
};

std::vector<Sample> samples() {
  return pointwise_samples([](const Var& x) { return reciprocal(x); }, 0.3, 2);
}
}  // namespace

const OpInfo reciprocal_info{"reciprocal", AmpTag::deny, "overflows half near 0, its gradient sooner", samples};

Var reciprocal(const Var& x) { return apply(Reciprocal{}, {x}); }

}  // namespace ht
