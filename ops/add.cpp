// y = a + b with broadcasting;  da = dy, db = dy, each summed over the axes that its operand repeats. Keeps nothing.
#include "ops/binary.h"
#include "ops/ops.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Add final : Binary<fn::Add> {
  const OpInfo& info() const override { return add_info; }
};

std::vector<Sample> samples() {
  return binary_samples([](const Var& a, const Var& b) { return add(a, b); }, 0, 2);
}
}  // namespace

const OpInfo add_info{"add", AmpTag::promote, "the wider operand keeps its precision", samples};

Var add(const Var& a, const Var& b) { return apply(Add{}, {a, b}); }

}  // namespace ht
