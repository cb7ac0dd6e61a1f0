// y_j = x_j - m - log sum_k e^(x_k - m), m the maximum along the axis;  dx = dy - e^y sum_k dy_k. Backward reads y.
#include "ops/ops.h"
#include "ops/registry.h"
#include "ops/samples.h"
#include "ops/softmax.h"

namespace ht {

namespace {
struct Formula {
  static constexpr bool log = true;
  template <class A>
  static A scale(A rest) {
    return std::log1p(rest);
  }
  template <class A>
  static A value(A d, A log_sum) {
    return d - log_sum;
  }
  template <class A>
  static A term(A dy, A) {
    return dy;
  }
  template <class A>
  static A dx(A dy, A y, A sum) {
    return dy - fn::exp(y) * sum;
  }
};

struct LogSoftmax final : SoftmaxOp<Formula> {
  using SoftmaxOp::SoftmaxOp;
  const OpInfo& info() const override { return log_softmax_info; }
};

std::vector<Sample> samples() {
  return axis_samples([](const Var& x, int axis) { return log_softmax(x, axis); });
}
}  // namespace

const OpInfo log_softmax_info{"log_softmax", AmpTag::deny, "exponentials and their sum need FP32's range", samples};

Var log_softmax(const Var& x, int axis) { return apply(LogSoftmax(axis), {x}); }

}  // namespace ht
