// y = min(max(x, low), high);  dx = dy where low <= x <= high, else 0. NaN stays NaN.
#include "ops/ops.h"
#include "ops/pointwise.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Clamp final : Pointwise<fn::Clamp> {
  using Pointwise::Pointwise;
  const OpInfo& info() const override { return clamp_info; }
  TensorSpec infer(Inputs in) const override {
    check(!std::isnan(fn_.low) && !std::isnan(fn_.high), "clamp: a bound is nan: low ", fn_.low, ", high ", fn_.high,
          " (", Named{"x", in[0]}, ")");
    check(fn_.low <= fn_.high, "clamp: low ", fn_.low, " is above high ", fn_.high, " (", Named{"x", in[0]}, ")");
    return Pointwise::infer(in);
  }
};

// Magnitudes are drawn in [0.1, 2], so that no sample lies near a bound.
std::vector<Sample> samples() {
  std::vector<Sample> all = pointwise_samples([](const Var& x) { return clamp(x, -0.05, 2.5); }, 0.1, 2);
  for (Sample& s : pointwise_samples([](const Var& x) { return clamp(x, -3, 0.05); }, 0.1, 2))
    all.push_back(std::move(s));
  return all;
}
}  // namespace

const OpInfo clamp_info{"clamp", AmpTag::leave, "stays within the bounds in any type", samples};

Var clamp(const Var& x, double low, double high) { return apply(Clamp(fn::Clamp{low, high}), {x}); }

}  // namespace ht
