// y = a - b with broadcasting;  da = dy, db = -dy, each summed over the axes that its operand repeats. Keeps nothing.
#include "ops/binary.h"
#include "ops/ops.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Sub final : Binary<fn::Sub> {
  const OpInfo& info() const override { return sub_info; }
};

std::vector<Sample> samples() {
  return binary_samples([](const Var& a, const Var& b) { return sub(a, b); }, 0, 2);
}
}  // namespace

const OpInfo sub_info{"sub", AmpTag::promote, "the wider operand keeps its precision", samples};

Var sub(const Var& a, const Var& b) { return apply(Sub{}, {a, b}); }

}  // namespace ht
