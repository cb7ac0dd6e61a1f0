// y = e^x;  dx = dy y.
#include "ops/ops.h"
#include "ops/pointwise.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Exp final : Pointwise<fn::Exp> {
  const OpInfo& info() const override { return exp_info; }
};

std::vector<Sample> samples() {
  return pointwise_samples([](const Var& x) { return exp(x); }, 0, 2);
}
}  // namespace

const OpInfo exp_info{"exp", AmpTag::deny, "overflows half above x = 11.09", samples};

Var exp(const Var& x) { return apply(Exp{}, {x}); }

}  // namespace ht
