// y = a / b with broadcasting;  da = dy / b, db = -dy a / b^2, each summed over the axes that its operand repeats.
#include "ops/binary.h"
#include "ops/ops.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Div final : Binary<fn::Div> {
  const OpInfo& info() const override { return div_info; }
};

std::vector<Sample> samples() {
  return binary_samples([](const Var& a, const Var& b) { return div(a, b); }, 0.3, 2);
}
}  // namespace

const OpInfo div_info{"div", AmpTag::promote, "the wider operand keeps its precision and range", samples};

Var div(const Var& a, const Var& b) { return apply(Div{}, {a, b}); }

}  // namespace ht
