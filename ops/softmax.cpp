// y_j = e^(x_j - m) / sum_k e^(x_k - m), m the maximum along the axis;  dx = y (dy - sum_k dy_k y_k). Backward reads y.
#include "ops/softmax.h"

#include "ops/ops.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Formula {
  static constexpr bool log = false;
  template <class A>
  static A scale(A rest) {
    return A(1) + rest;
  }
  template <class A>
  static A value(A d, A scale) {
    return fn::exp(d) / scale;
  }
  template <class A>
  static A term(A dy, A y) {
    return dy * y;
  }
  template <class A>
  static A dx(A dy, A y, A sum) {
    return y * (dy - sum);
  }
};

struct Softmax final : SoftmaxOp<Formula> {
  using SoftmaxOp::SoftmaxOp;
  const OpInfo& info() const override { return softmax_info; }
};

std::vector<Sample> samples() {
  return axis_samples([](const Var& x, int axis) { return softmax(x, axis); });
}
}  // namespace

const OpInfo softmax_info{"softmax", AmpTag::deny, "exponentials and their sum need FP32's range", samples};

Var softmax(const Var& x, int axis) { return apply(Softmax(axis), {x}); }

}  // namespace ht
