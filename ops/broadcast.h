// NumPy broadcasting: how the elements of two contiguous operands meet, as few axes as possible. Shared by the
// two-input ops, reduce_to and their CUDA kernels.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include "autograd/op.h"

namespace ht {

// Axes of the output, outermost first, with the operands' strides in elements (0 where one is repeated). Axes of size 1
// are dropped and neighbours that both operands walk alike are merged: equal shapes give one axis with strides 1 and 1,
// a scalar one with a stride 0, [n, h, w, c] + [c] two. Never empty.
struct BroadcastPlan {
  int rank = 0;
  std::array<int64_t, Shape::kMaxRank> sizes{}, a_strides{}, b_strides{};

  void push(int64_t size, int64_t a_stride, int64_t b_stride);
  int64_t a_stride() const { return a_strides[static_cast<size_t>(rank) - 1]; }  // innermost, 0 or 1 for an operand
  int64_t b_stride() const { return b_strides[static_cast<size_t>(rank) - 1]; }
};

// The plan of a and b for the shape that broadcast(a, b) gave.
BroadcastPlan plan_broadcast(const Shape& a, const Shape& b, const Shape& out);

// infer of every two-input op: both floating, one dtype, shapes that broadcast; throws Error naming `op`, a and b.
TensorSpec infer_broadcast(std::string_view op, Inputs in);

// Cuts elements [begin, end) of the output into runs along the innermost axis and calls f(i, a, b, n): the run's first
// output element, the operands' offsets there, its length.
template <class F>
void for_each_row(const BroadcastPlan& plan, int64_t begin, int64_t end, F&& f) {
  std::array<int64_t, Shape::kMaxRank> at{};
  int64_t a = 0, b = 0;
  const size_t last = static_cast<size_t>(plan.rank) - 1;
  int64_t rest = begin;
  for (size_t axis = last + 1; axis-- > 0; rest /= plan.sizes[axis]) {
    at[axis] = rest % plan.sizes[axis];
    a += at[axis] * plan.a_strides[axis];
    b += at[axis] * plan.b_strides[axis];
  }
  while (begin < end) {
    const int64_t n = std::min(plan.sizes[last] - at[last], end - begin);
    f(begin, a, b, n);
    begin += n;
    at[last] += n;
    a += n * plan.a_strides[last];
    b += n * plan.b_strides[last];
    for (size_t axis = last; axis > 0 && at[axis] == plan.sizes[axis]; --axis) {
      at[axis] = 0;
      ++at[axis - 1];
      a += plan.a_strides[axis - 1] - plan.sizes[axis] * plan.a_strides[axis];
      b += plan.b_strides[axis - 1] - plan.sizes[axis] * plan.b_strides[axis];
    }
  }
}

}  // namespace ht
