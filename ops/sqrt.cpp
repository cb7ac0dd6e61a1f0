// y = sqrt(x), NaN below 0;  dx = dy / (2 y), infinite at 0.
#include "ops/ops.h"
#include "ops/pointwise.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Sqrt final : Pointwise<fn::Sqrt> {
  const OpInfo& info() const override { return sqrt_info; }
};

std::vector<Sample> samples() {
  return pointwise_samples([](const Var& x) { return sqrt(x); }, 0.2, 3, false);
}
}  // namespace

const OpInfo sqrt_info{"sqrt", AmpTag::deny, "the gradient overflows half near 0", samples};

Var sqrt(const Var& x) { return apply(Sqrt{}, {x}); }

}  // namespace ht
