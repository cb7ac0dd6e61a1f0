// y = ln(x), -inf at 0 and NaN below;  dx = dy / x.
#include "ops/ops.h"
#include "ops/pointwise.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Log final : Pointwise<fn::Log> {
  const OpInfo& info() const override { return log_info; }
};

std::vector<Sample> samples() {
  return pointwise_samples([](const Var& x) { return log(x); }, 0.2, 3, false);
}
}  // namespace

const OpInfo log_info{"log", AmpTag::deny, "the gradient 1 / x overflows half near 0", samples};

Var log(const Var& x) { return apply(Log{}, {x}); }

}  // namespace ht
