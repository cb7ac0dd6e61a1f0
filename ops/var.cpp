// y = sum of (x - m)^2 / max(n - correction, 0), m the mean over the chosen axes, in two passes;
// dx = dy * 2 (x - m) / max(n - correction, 0)  (the part through m sums to 0). Backward reads x and m.
#include "ops/ops.h"
#include "ops/reduce.h"
#include "ops/reduce_functions.h"
#include "ops/registry.h"

namespace ht {

namespace {
struct Variance final : Reduce<fn::Variance> {
  using Reduce::Reduce;
  const OpInfo& info() const override { return var_info; }
};

std::vector<Sample> samples() {
  auto all = reduce_samples([](const Var& x, const ReduceOptions& options) { return var(x, options); });
  auto biased = reduce_samples([](const Var& x, const ReduceOptions& options) { return var(x, options, 0); });
  all.insert(all.end(), biased.begin(), biased.end());
  return all;
}
}  // namespace

const OpInfo var_info{"var", AmpTag::deny, "squares leave half's range: 300^2 is inf", samples};

Var var(const Var& x, const ReduceOptions& options, int64_t correction) {
  check(correction >= 0, "var: correction is ", correction, " but must be 0 or more (", Named{"x", x.value()}, ")");
  return apply(Variance(options, fn::Variance{static_cast<double>(correction)}), {x});
}

}  // namespace ht
