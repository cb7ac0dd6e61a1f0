// The shape of every pointwise op: one floating input, one formula from ops/pointwise_functions.h.
#pragma once

#include "autograd/var.h"
#include "core/build.h"
#include "core/parallel.h"
#include "ops/map_row.h"
#include "ops/pointwise_functions.h"

namespace ht {

// The CUDA launchers, instantiated in ops/pointwise.cu. `saved` is what Fn::saves says, or dy.
template <class Fn>
void pointwise_forward_cuda(Context& ctx, Fn fn, const Tensor& x, const Tensor& y);
template <class Fn>
void pointwise_backward_cuda(Context& ctx, Fn fn, const Tensor& saved, const Tensor& dy, const Tensor& dx);

template <class Fn>
class Pointwise : public Op {
 public:
  explicit Pointwise(Fn fn = {}) : fn_(fn) {}

  TensorSpec infer(Inputs in) const override {
    check(is_floating(in[0].dtype()), name(), ": x must be floating; cast() it first (", Named{"x", in[0]}, ")");
    return in[0].spec();
  }

  Tensor forward(Context& ctx, Inputs in, const TensorSpec& out) override {
    const Tensor x = in[0], y = Tensor::empty(out, ctx.device());
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) pointwise_forward_cuda(ctx, fn_, x, y);
    }
    if (!ctx.is_cuda()) {
      dispatch_floating(out.dtype, name(), [&]<class T>() {
        const T* from = x.data<T>();
        T* to = y.data<T>();
        parallel_for(x.numel(), kGrain, [=, fn = fn_](int64_t begin, int64_t end) {
          map_row(
              to + begin, end - begin, [fn](auto v) { return fn.f(v); }, Operand<Step::moves, T>(from + begin));
        });
      });
    }
    if constexpr (Fn::saves == fn::Saves::x) saved_ = x;
    if constexpr (Fn::saves == fn::Saves::y) saved_ = y;
    return y;
  }

  Grads backward(Context& ctx, const Tensor& dy, const std::vector<bool>&) override {
    const Tensor dx = Tensor::empty_like(dy);
    const Tensor s = Fn::saves == fn::Saves::none ? dy : *saved_;
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) pointwise_backward_cuda(ctx, fn_, s, dy, dx);
    }
    if (!ctx.is_cuda()) {
      dispatch_floating(dy.dtype(), name(), [&]<class T>() {
        constexpr Step kStep = Fn::saves == fn::Saves::none ? Step::unused : Step::moves;
        const T *kept = s.data<T>(), *from = dy.data<T>();
        T* to = dx.data<T>();
        parallel_for(dy.numel(), kGrain, [=, fn = fn_](int64_t begin, int64_t end) {
          map_row(
              to + begin, end - begin, [fn](auto d, auto v) { return fn.dx(d, v); },
              Operand<Step::moves, T>(from + begin), Operand<kStep, T>(kept + begin));
        });
      });
    }
    return {dx};
  }

 protected:
  static constexpr int64_t kGrain = 1 << 13;  // elements worth a thread

  Fn fn_;
  Saved saved_;
};

}  // namespace ht
