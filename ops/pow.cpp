// y = x^e;  dx = dy e x^(e - 1), 0 for e = 0. As std::pow: NaN for a negative x and a fractional e.
#include "ops/ops.h"
#include "ops/pointwise.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Pow final : Pointwise<fn::Pow> {
  using Pointwise::Pointwise;
  const OpInfo& info() const override { return pow_info; }
  TensorSpec infer(Inputs in) const override {
    check(std::isfinite(fn_.exponent), "pow: the exponent is ", fn_.exponent, ", it must be finite (",
          Named{"x", in[0]}, ")");
    return Pointwise::infer(in);
  }
};

std::vector<Sample> samples() {
  std::vector<Sample> all = pointwise_samples([](const Var& x) { return pow(x, 2.5); }, 0.3, 2, false);
  for (Sample& s : pointwise_samples([](const Var& x) { return pow(x, 3); }, 0.3, 2)) all.push_back(std::move(s));
  for (const double e : {-1.5, 0.0, 0.5, 1.0, 2.0})
    all.push_back({str("exponent ", e), {sample_uniform({3, 5}, 20, 0.3, 2)}, [e](std::span<const Var> in) {
                     return pow(in[0], e);
                   }});
  return all;
}
}  // namespace

const OpInfo pow_info{"pow", AmpTag::deny, "powers leave half's range: 300^2 is inf", samples};

Var pow(const Var& x, double exponent) { return apply(Pow(fn::Pow{exponent}), {x}); }

}  // namespace ht
