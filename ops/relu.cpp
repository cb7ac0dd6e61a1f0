// y = max(x, 0);  dx = dy where y > 0, else 0. Backward reads y, which the next layer keeps anyway.
#include "ops/parts.h"
#include "ops/pointwise.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Relu final : Pointwise<fn::Relu> {
  const OpInfo& info() const override { return relu_info; }
};

std::vector<Sample> samples() {
  return pointwise_samples([](const Var& x) { return relu(x); }, 0.1, 2);  // away from the kink at 0
}
}  // namespace

const OpInfo relu_info{"relu", AmpTag::leave, "exact in any type", samples};

Var relu(const Var& x) { return apply(Relu{}, {x}); }
std::unique_ptr<Op> make_relu() { return std::make_unique<Relu>(); }

}  // namespace ht
