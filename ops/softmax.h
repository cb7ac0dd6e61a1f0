// What softmax, log_softmax and cross_entropy share: how they see an axis, and the stable statistics along it.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/context.h"
#include "core/parallel.h"
#include "core/tensor.h"

namespace ht {

// x [outer, n, inner], the probabilities along n.
struct SoftmaxPlan {
  int64_t outer = 1, n = 1, inner = 1;
};

// Throws Error on an axis out of range and on an integer x.
inline SoftmaxPlan plan_softmax(std::string_view who, const Tensor& x, int axis) {
  check(is_floating(x.dtype()), who, ": the input must be floating; cast() it first (", Named{"x", x}, ")");
  check(axis >= -x.rank() && axis < x.rank(), who, ": axis ", axis, " is out of range for rank ", x.rank(), " (",
        Named{"x", x}, ")");
  const int a = x.shape().normalize(axis);
  return {x.shape().product(0, a), x.dim(a), x.shape().product(a + 1, x.rank())};
}

// The CUDA launchers (ops/softmax.cu), for softmax and, with `log`, log_softmax.
void softmax_forward_cuda(Context& ctx, bool log, const SoftmaxPlan& plan, const Tensor& x, const Tensor& y);
void softmax_backward_cuda(Context& ctx, bool log, const SoftmaxPlan& plan, const Tensor& y, const Tensor& dy,
                           const Tensor& dx);

inline constexpr int64_t kSoftmaxWidth = 32;  // neighbouring columns treated together when inner is not 1

// Calls body(first, width) for blocks of neighbouring columns: element j of column c is x[first + j * inner + c].
template <class F>
void for_softmax_blocks(const SoftmaxPlan& p, F body) {
  const int64_t blocks = (p.inner + kSoftmaxWidth - 1) / kSoftmaxWidth;
  const int64_t work = 1 + p.n * std::min(p.inner, kSoftmaxWidth);
  parallel_for(p.outer * blocks, std::max<int64_t>(1, 4096 / work), [&p, body, blocks](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t column = item % blocks * kSoftmaxWidth;
      body(item / blocks * p.n * p.inner + column, std::min(kSoftmaxWidth, p.inner - column));
    }
  });
}

// Per column: the maximum m, and `rest`, the sum of e^(x - m) without the maximum's own 1. The logarithm of the sum is
// then log1p(rest), exact even where the maximum has nearly all of the probability. NaN and infinities make rest NaN.
template <class A>
struct SoftmaxStats {
  A max[kSoftmaxWidth], rest[kSoftmaxWidth];
};
template <class T>
SoftmaxStats<acc_t<T>> softmax_stats(const T* x, const SoftmaxPlan& p, int64_t width) {
  using A = acc_t<T>;
  SoftmaxStats<A> s;
  int64_t arg[kSoftmaxWidth];
  std::fill_n(s.max, width, -std::numeric_limits<A>::infinity());
  std::fill_n(s.rest, width, A(0));
  std::fill_n(arg, width, int64_t{-1});
  for (int64_t j = 0; j < p.n; ++j) {
    for (int64_t c = 0; c < width; ++c) {
      const A v = static_cast<A>(x[j * p.inner + c]);
      if (v > s.max[c]) s.max[c] = v, arg[c] = j;
    }
  }
  for (int64_t j = 0; j < p.n; ++j) {
    for (int64_t c = 0; c < width; ++c) {
      const A d = static_cast<A>(x[j * p.inner + c]) - s.max[c];
      s.rest[c] += j == arg[c] ? d : std::exp(d);  // d is 0 at the maximum, NaN when that is infinite
    }
  }
  return s;
}

}  // namespace ht
