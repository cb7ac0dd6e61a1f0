// The shape of every two-input op: two floating operands that broadcast, one formula from ops/pointwise_functions.h.
#pragma once

#include "autograd/var.h"
#include "core/build.h"
#include "core/parallel.h"
#include "ops/map_row.h"
#include "ops/pointwise_functions.h"
#include "ops/reduce_to.h"

namespace ht {

// The CUDA launchers, instantiated in ops/binary.cu. Backward writes the gradient of one operand (0: a, 1: b) in the
// plan's output shape; an operand that Fn's gradient does not read is undefined.
template <class Fn>
void binary_forward_cuda(Context& ctx, Fn fn, const BroadcastPlan& plan, const Tensor& a, const Tensor& b,
                         const Tensor& y);
template <class Fn>
void binary_backward_cuda(Context& ctx, Fn fn, const BroadcastPlan& plan, int operand, const Tensor& dy,
                          const Tensor& a, const Tensor& b, const Tensor& dx);

// y[i] = g(dy[i], a[..], b[..]) on the CPU; what is not read is passed as 0 and its pointer may be null.
template <bool kReadDy, bool kReadA, bool kReadB, class T, class G>
void broadcast_map(const BroadcastPlan& plan, int64_t n, const T* dy, const T* a, const T* b, T* y, G g) {
  const auto run = [&]<Step A, Step B>() {
    parallel_for(n, 1 << 13, [=, &plan](int64_t begin, int64_t end) {
      for_each_row(plan, begin, end, [=](int64_t i, int64_t at_a, int64_t at_b, int64_t m) {
        constexpr Step kDy = kReadDy ? Step::moves : Step::unused;
        map_row(y + i, m, g, Operand<kDy, T>(dy + (kReadDy ? i : 0)), Operand<A, T>(a + (kReadA ? at_a : 0)),
                Operand<B, T>(b + (kReadB ? at_b : 0)));
      });
    });
  };
  constexpr Step kMovesA = kReadA ? Step::moves : Step::unused, kFixedA = kReadA ? Step::fixed : Step::unused;
  constexpr Step kMovesB = kReadB ? Step::moves : Step::unused, kFixedB = kReadB ? Step::fixed : Step::unused;
  if (plan.a_stride() == 0) {
    run.template operator()<kFixedA, kMovesB>();
  } else if (plan.b_stride() == 0) {
    run.template operator()<kMovesA, kFixedB>();
  } else {
    run.template operator()<kMovesA, kMovesB>();
  }
}

template <class Fn>
class Binary : public Op {
 public:
  TensorSpec infer(Inputs in) const override { return infer_broadcast(name(), in); }

  Tensor forward(Context& ctx, Inputs in, const TensorSpec& out) override {
    const Tensor a = in[0], b = in[1], y = Tensor::empty(out, ctx.device());
    const BroadcastPlan plan = plan_broadcast(a.shape(), b.shape(), out.shape);
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) binary_forward_cuda(ctx, fn_, plan, a, b, y);
    }
    if (!ctx.is_cuda()) {
      dispatch_floating(out.dtype, name(), [&]<class T>() {
        broadcast_map<false, true, true>(plan, y.numel(), static_cast<const T*>(nullptr), a.data<T>(), b.data<T>(),
                                         y.data<T>(), [fn = fn_](auto, auto u, auto v) { return fn.f(u, v); });
      });
    }
    a_shape_ = a.shape();
    b_shape_ = b.shape();
    if constexpr (fn::reads_a(Fn::da_reads) || fn::reads_a(Fn::db_reads)) a_ = a;
    if constexpr (fn::reads_b(Fn::da_reads) || fn::reads_b(Fn::db_reads)) b_ = b;
    return y;
  }

  Grads backward(Context& ctx, const Tensor& dy, const std::vector<bool>& needs) override {
    return {needs[0] ? gradient<0>(ctx, dy) : Tensor(), needs[1] ? gradient<1>(ctx, dy) : Tensor()};
  }

 protected:
  template <int kOperand>
  Tensor gradient(Context& ctx, const Tensor& dy) {
    constexpr fn::Reads kReads = kOperand == 0 ? Fn::da_reads : Fn::db_reads;
    const Shape& shape = kOperand == 0 ? a_shape_ : b_shape_;
    if constexpr (kReads == fn::Reads::nothing) {
      return reduce_to(ctx, dy, shape);
    } else if constexpr (kReads == fn::Reads::dy) {
      return elementwise<kOperand, kReads>(ctx, plan_broadcast(shape, shape, shape), reduce_to(ctx, dy, shape));
    } else {
      const BroadcastPlan plan = plan_broadcast(a_shape_, b_shape_, dy.shape());
      return reduce_to(ctx, elementwise<kOperand, kReads>(ctx, plan, dy), shape);
    }
  }

  template <int kOperand, fn::Reads kReads>
  Tensor elementwise(Context& ctx, const BroadcastPlan& plan, const Tensor& dy) {
    constexpr bool kReadA = fn::reads_a(kReads), kReadB = fn::reads_b(kReads);
    const Tensor dx = Tensor::empty_like(dy), a = kReadA ? *a_ : Tensor(), b = kReadB ? *b_ : Tensor();
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) binary_backward_cuda(ctx, fn_, plan, kOperand, dy, a, b, dx);
    }
    if (!ctx.is_cuda()) {
      dispatch_floating(dy.dtype(), name(), [&]<class T>() {
        broadcast_map<true, kReadA, kReadB>(
            plan, dy.numel(), static_cast<const T*>(dy.data<T>()), static_cast<const T*>(a.data()),
            static_cast<const T*>(b.data()), dx.data<T>(),
            [fn = fn_](auto d, auto u, auto v) { return kOperand == 0 ? fn.da(d, u, v) : fn.db(d, u, v); });
      });
    }
    return dx;
  }

  Fn fn_;
  Shape a_shape_, b_shape_;
  Saved a_, b_;
};

}  // namespace ht
