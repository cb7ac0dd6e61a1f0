// What softmax, log_softmax and cross_entropy share: how they see an axis, the stable statistics along it, and the one
// Op class over the formulas of the first two.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/var.h"
#include "core/build.h"
#include "core/parallel.h"
#include "ops/float_math.h"
#include "ops/reduce.h"

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

// Calls f(i, c) for every element of a block: element i of it, in column c. A last axis is one run, which vectorises.
template <class F>
void each_softmax(const SoftmaxPlan& p, int64_t width, F f) {
  if (p.inner == 1) {
    for (int64_t j = 0; j < p.n; ++j) f(j, int64_t{0});
  } else {
    for (int64_t j = 0; j < p.n; ++j)
      for (int64_t c = 0; c < width; ++c) f(j * p.inner + c, c);
  }
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
  std::fill_n(s.max, width, -std::numeric_limits<A>::infinity());
  if (p.inner == 1) {
    const A m = s.max[0] = lane_max<A>(p.n, [x](int64_t j) { return static_cast<A>(x[j]); });
    int64_t arg = 0;
    while (arg < p.n && static_cast<A>(x[arg]) != m) ++arg;
    const auto sum = [x, m](int64_t from, int64_t to) {
      return lane_sum<A>(to - from, [x, m, from](int64_t j) { return fn::exp(static_cast<A>(x[from + j]) - m); });
    };
    s.rest[0] = sum(0, arg);
    if (arg < p.n) s.rest[0] += (static_cast<A>(x[arg]) - m) + sum(arg + 1, p.n);  // 0, or NaN when m is infinite
    return s;
  }
  int64_t arg[kSoftmaxWidth];
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
      s.rest[c] += j == arg[c] ? d : fn::exp(d);  // d is 0 at the maximum, NaN when that is infinite
    }
  }
  return s;
}

// y = fn.value(x - m, fn.scale(rest));  dx = fn.dx(dy, y, sum of fn.term(dy, y) along the axis). Backward reads y.
template <class Fn>
class SoftmaxOp : public Op {
 public:
  explicit SoftmaxOp(int axis) : axis_(axis) {}

  TensorSpec infer(Inputs in) const override {
    plan_softmax(name(), in[0], axis_);
    return in[0].spec();
  }

  Tensor forward(Context& ctx, Inputs in, const TensorSpec& out) override {
    const Tensor x = in[0], y = Tensor::empty(out, ctx.device());
    plan_ = plan_softmax(name(), x, axis_);
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) softmax_forward_cuda(ctx, Fn::log, plan_, x, y);
    }
    if (!ctx.is_cuda())
      dispatch_floating(out.dtype, name(), [&]<class T>() { forward_cpu(plan_, x.data<T>(), y.data<T>()); });
    y_ = y;
    return y;
  }

  Grads backward(Context& ctx, const Tensor& dy, const std::vector<bool>&) override {
    const Tensor dx = Tensor::empty_like(dy), y = *y_;
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) softmax_backward_cuda(ctx, Fn::log, plan_, y, dy, dx);
    }
    if (!ctx.is_cuda()) {
      dispatch_floating(dy.dtype(), name(),
                        [&]<class T>() { backward_cpu(plan_, y.data<T>(), dy.data<T>(), dx.data<T>()); });
    }
    return {dx};
  }

 private:
  template <class T>
  static void forward_cpu(const SoftmaxPlan& p, const T* from, T* to) {
    using A = acc_t<T>;
    for_softmax_blocks(p, [&p, from, to](int64_t first, int64_t width) {
      const T* x = from + first;
      T* y = to + first;
      const SoftmaxStats<A> s = softmax_stats(x, p, width);
      A scale[kSoftmaxWidth];
      for (int64_t c = 0; c < width; ++c) scale[c] = Fn::scale(s.rest[c]);
      each_softmax(p, width, [&](int64_t i, int64_t c) {
        y[i] = static_cast<T>(Fn::value(static_cast<A>(x[i]) - s.max[c], scale[c]));
      });
    });
  }

  template <class T>
  static void backward_cpu(const SoftmaxPlan& p, const T* y0, const T* dy0, T* dx0) {
    using A = acc_t<T>;
    for_softmax_blocks(p, [=, &p](int64_t first, int64_t width) {
      const T *y = y0 + first, *dy = dy0 + first;
      T* dx = dx0 + first;
      A sum[kSoftmaxWidth] = {};
      const auto term = [=](int64_t i) { return Fn::term(static_cast<A>(dy[i]), static_cast<A>(y[i])); };
      if (p.inner == 1) {
        sum[0] = lane_sum<A>(p.n, term);
      } else {
        each_softmax(p, width, [&](int64_t i, int64_t c) { sum[c] += term(i); });
      }
      each_softmax(p, width, [&](int64_t i, int64_t c) {
        dx[i] = static_cast<T>(Fn::dx(static_cast<A>(dy[i]), static_cast<A>(y[i]), sum[c]));
      });
    });
  }

  int axis_;
  SoftmaxPlan plan_;
  Saved y_;
};

}  // namespace ht
