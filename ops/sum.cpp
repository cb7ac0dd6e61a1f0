// y = sum of x over the chosen axes;  dx = dy, spread over them.
#include "ops/ops.h"
#include "ops/reduce.h"
#include "ops/reduce_functions.h"
#include "ops/registry.h"

namespace ht {

namespace {
struct Sum final : Reduce<fn::Sum> {
  using Reduce::Reduce;
  const OpInfo& info() const override { return sum_info; }
};

std::vector<Sample> samples() {
  return reduce_samples([](const Var& x, const ReduceOptions& options) { return sum(x, options); });
}
}  // namespace

const OpInfo sum_info{"sum", AmpTag::deny, "a long sum leaves half's range and precision", samples};

Var sum(const Var& x, const ReduceOptions& options) { return apply(Sum(options), {x}); }

}  // namespace ht
