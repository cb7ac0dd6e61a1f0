#include "ops/broadcast.h"

namespace ht {

void BroadcastPlan::push(int64_t size, int64_t a_stride, int64_t b_stride) {
  const size_t i = static_cast<size_t>(rank++);
  sizes[i] = size;
  a_strides[i] = a_stride;
  b_strides[i] = b_stride;
}

BroadcastPlan plan_broadcast(const Shape& a, const Shape& b, const Shape& out) {
  // Innermost first: every axis that is not 1, with its strides.
  BroadcastPlan reversed;
  int64_t a_step = 1, b_step = 1;
  for (int i = 1; i <= out.rank(); ++i) {
    const int64_t size = out[-i], in_a = i <= a.rank() ? a[-i] : 1, in_b = i <= b.rank() ? b[-i] : 1;
    if (size == 1) continue;
    const int64_t a_stride = in_a == 1 ? 0 : a_step, b_stride = in_b == 1 ? 0 : b_step;
    a_step *= in_a;
    b_step *= in_b;
    const size_t inner = static_cast<size_t>(reversed.rank) - 1;
    if (reversed.rank > 0 && a_stride == reversed.a_strides[inner] * reversed.sizes[inner] &&
        b_stride == reversed.b_strides[inner] * reversed.sizes[inner]) {
      reversed.sizes[inner] *= size;
    } else {
      reversed.push(size, a_stride, b_stride);
    }
  }
  BroadcastPlan plan;
  for (size_t i = static_cast<size_t>(reversed.rank); i-- > 0;)
    plan.push(reversed.sizes[i], reversed.a_strides[i], reversed.b_strides[i]);
  if (plan.rank == 0) plan.push(1, 1, 1);
  return plan;
}

TensorSpec infer_broadcast(std::string_view op, Inputs in) {
  const Tensor &a = in[0], &b = in[1];
  const Named an{"a", a}, bn{"b", b};
  check(is_floating(a.dtype()) && is_floating(b.dtype()), op, ": ", is_floating(a.dtype()) ? "b" : "a",
        " must be floating; cast() it first (", an, ", ", bn, ")");
  check(a.dtype() == b.dtype(), op, ": a is ", a.dtype(), " but b is ", b.dtype(),
        "; cast() one of them or use autocast (", an, ", ", bn, ")");
  for (int i = 1; i <= std::min(a.rank(), b.rank()); ++i) {
    const int64_t in_a = a.dim(-i), in_b = b.dim(-i);
    check(in_a == in_b || in_a == 1 || in_b == 1, op, ": axis -", i, " is ", in_a, " in a but ", in_b,
          " in b; sizes must agree or be 1 (", an, ", ", bn, ")");
  }
  return {broadcast(a.shape(), b.shape(), op), a.dtype()};
}

}  // namespace ht
