// y = a b with broadcasting;  da = dy b, db = dy a, each summed over the axes that its operand repeats.
#include "ops/binary.h"
#include "ops/ops.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Mul final : Binary<fn::Mul> {
  const OpInfo& info() const override { return mul_info; }
};

std::vector<Sample> samples() {
  return binary_samples([](const Var& a, const Var& b) { return mul(a, b); }, 0, 2);
}
}  // namespace

const OpInfo mul_info{"mul", AmpTag::promote, "the wider operand keeps its precision and range", samples};

Var mul(const Var& a, const Var& b) { return apply(Mul{}, {a, b}); }

}  // namespace ht
