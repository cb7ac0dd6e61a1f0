// y = tanh(x);  dx = dy (1 - y^2).
#include "ops/ops.h"
#include "ops/pointwise.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Tanh final : Pointwise<fn::Tanh> {
  const OpInfo& info() const override { return tanh_info; }
};

std::vector<Sample> samples() {
  return pointwise_samples([](const Var& x) { return tanh(x); }, 0, 2);
}
}  // namespace

const OpInfo tanh_info{"tanh", AmpTag::leave, "its range is [-1, 1]", samples};

Var tanh(const Var& x) { return apply(Tanh{}, {x}); }

}  // namespace ht
