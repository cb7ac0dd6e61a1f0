// y = 1 / sqrt(x), inf at 0 and NaN below;  dx = -dy y^3 / 2.
#include "ops/ops.h"
#include "ops/pointwise.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Rsqrt final : Pointwise<fn::Rsqrt> {
  const OpInfo& info() const override { return rsqrt_info; }
};

std::vector<Sample> samples() {
  return pointwise_samples([](const Var& x) { return rsqrt(x); }, 0.2, 3, false);
}
}  // namespace

const OpInfo rsqrt_info{"rsqrt", AmpTag::deny, "the gradient grows as x^-1.5 and overflows half near 0", samples};

Var rsqrt(const Var& x) { return apply(Rsqrt{}, {x}); }

}  // namespace ht
