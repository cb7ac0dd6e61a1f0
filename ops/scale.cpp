// y = s x with a number s;  dx = s dy.
#include "ops/ops.h"
#include "ops/pointwise.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Scale final : Pointwise<fn::Scale> {
  using Pointwise::Pointwise;
  const OpInfo& info() const override { return scale_info; }
  TensorSpec infer(Inputs in) const override {
    check(!std::isnan(fn_.factor), "scale: the factor is nan, it must be a number (", Named{"x", in[0]}, ")");
    return Pointwise::infer(in);
  }
};

std::vector<Sample> samples() {
  return pointwise_samples([](const Var& x) { return scale(x, -1.75); }, 0, 2);
}
}  // namespace

const OpInfo scale_info{"scale", AmpTag::leave, "one rounding in any type", samples};

Var scale(const Var& x, double factor) { return apply(Scale(fn::Scale{factor}), {x}); }

}  // namespace ht
