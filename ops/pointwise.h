// The shape of every pointwise op: one floating input, one formula from ops/pointwise_functions.h.
#pragma once

#include "autograd/var.h"
#include "core/parallel.h"
#include "ops/pointwise_functions.h"

namespace ht {

// The CUDA launchers, instantiated in ops/pointwise.cu.
template <class Fn>
void pointwise_forward_cuda(Context& ctx, Fn fn, const Tensor& x, const Tensor& y);
template <class Fn>
void pointwise_backward_cuda(Context& ctx, Fn fn, const Tensor& saved, const Tensor& dy, const Tensor& dx);

template <class Fn>
class Pointwise : public Op {
 public:
  explicit Pointwise(Fn f = {}) : fn(f) {}

  TensorSpec infer(Inputs in) const override {
    check(is_floating(in[0].dtype()), name(), ": the input must be floating (", Named{"x", in[0]}, ")");
    return in[0].spec();
  }

  Tensor forward(Context& ctx, Inputs in, const TensorSpec& out) override {
    const Tensor x = in[0], y = Tensor::empty(out, ctx.device());
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) pointwise_forward_cuda(ctx, fn, x, y);
    }
    if (!ctx.is_cuda()) {
      dispatch_floating(out.dtype, name(), [&]<class T>() {
        const T* from = x.data<T>();
        T* to = y.data<T>();
        parallel_for(x.numel(), 1 << 13, [=, fn = fn](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) to[i] = static_cast<T>(fn.f(static_cast<acc_t<T>>(from[i])));
        });
      });
    }
    if constexpr (Fn::saves == fn::Saves::x) saved = x;
    if constexpr (Fn::saves == fn::Saves::y) saved = y;
    return y;
  }

  Grads backward(Context& ctx, const Tensor& dy, const std::vector<bool>&) override {
    const Tensor dx = Tensor::empty_like(dy);
    const Tensor s = saved ? *saved : dy;
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) pointwise_backward_cuda(ctx, fn, s, dy, dx);
    }
    if (!ctx.is_cuda()) {
      dispatch_floating(dy.dtype(), name(), [&]<class T>() {
        const T *kept = s.data<T>(), *from = dy.data<T>();
        T* to = dx.data<T>();
        parallel_for(dy.numel(), 1 << 13, [=, fn = fn](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const auto v = static_cast<acc_t<T>>(kept[i]);
            to[i] = static_cast<T>(static_cast<acc_t<T>>(from[i]) * fn.df(v, v));
          }
        });
      });
    }
    return {dx};
  }

 protected:
  Fn fn;
  Saved saved;
};

}  // namespace ht
