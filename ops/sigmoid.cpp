// y = 1 / (1 + e^-x);  dx = dy y (1 - y).
#include "ops/ops.h"
#include "ops/pointwise.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Sigmoid final : Pointwise<fn::Sigmoid> {
  const OpInfo& info() const override { return sigmoid_info; }
};

std::vector<Sample> samples() {
  return pointwise_samples([](const Var& x) { return sigmoid(x); }, 0, 4);
}
}  // namespace

const OpInfo sigmoid_info{"sigmoid", AmpTag::leave, "its range is [0, 1]", samples};

Var sigmoid(const Var& x) { return apply(Sigmoid{}, {x}); }

}  // namespace ht
