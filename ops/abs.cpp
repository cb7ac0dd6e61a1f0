// y = |x|;  dx = dy sign(x), 0 at 0.
#include "ops/ops.h"
#include "ops/pointwise.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Abs final : Pointwise<fn::Abs> {
  const OpInfo& info() const override { return abs_info; }
};

std::vector<Sample> samples() {
  return pointwise_samples([](const Var& x) { return abs(x); }, 0.1, 2);
}
}  // namespace

const OpInfo abs_info{"abs", AmpTag::leave, "exact in any type", samples};

Var abs(const Var& x) { return apply(Abs{}, {x}); }

}  // namespace ht
