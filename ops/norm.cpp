// y = sqrt(sum of x^2 over the chosen axes);  dx = dy * x / y, and 0 where y is 0.
#include "ops/ops.h"
#include "ops/reduce.h"
#include "ops/reduce_functions.h"
#include "ops/registry.h"

namespace ht {

namespace {
struct Norm final : Reduce<fn::Norm> {
  using Reduce::Reduce;
  const OpInfo& info() const override { return norm_info; }
};

std::vector<Sample> samples() {
  return reduce_samples([](const Var& x, const ReduceOptions& options) { return norm(x, options); });
}
}  // namespace

const OpInfo norm_info{"norm", AmpTag::deny, "squares leave half's range: 300^2 is inf", samples};

Var norm(const Var& x, const ReduceOptions& options) { return apply(Norm(options), {x}); }

}  // namespace ht
