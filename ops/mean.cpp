// y = sum of x over the chosen axes / n, n the elements behind one output (none: NaN);  dx = dy / n, spread over them.
#include "ops/ops.h"
#include "ops/reduce.h"
#include "ops/reduce_functions.h"
#include "ops/registry.h"

namespace ht {

namespace {
struct Mean final : Reduce<fn::Mean> {
  using Reduce::Reduce;
  const OpInfo& info() const override { return mean_info; }
};

std::vector<Sample> samples() {
  return reduce_samples([](const Var& x, const ReduceOptions& options) { return mean(x, options); });
}
}  // namespace

const OpInfo mean_info{"mean", AmpTag::deny, "the sum behind it leaves half's range and precision", samples};

Var mean(const Var& x, const ReduceOptions& options) { return apply(Mean(options), {x}); }

}  // namespace ht
