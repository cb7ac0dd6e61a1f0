// y = x Phi(x), Phi the normal distribution's CDF;  dx = dy (Phi(x) + x phi(x)), phi its density.
#include "ops/ops.h"
#include "ops/pointwise.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Gelu final : Pointwise<fn::Gelu> {
  const OpInfo& info() const override { return gelu_info; }
};

std::vector<Sample> samples() {
  return pointwise_samples([](const Var& x) { return gelu(x); }, 0, 3);
}
}  // namespace

const OpInfo gelu_info{"gelu", AmpTag::leave, "grows no faster than its input", samples};

Var gelu(const Var& x) { return apply(Gelu{}, {x}); }

}  // namespace ht
