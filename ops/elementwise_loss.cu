// The losses over elements on CUDA: one summing pass forward, one pass backward, or both in one. x and dx are of type
// X, all else of T: the same, or FP32 beside a half X.
#include "ops/elementwise_loss.h"
#include "ops/reduce.cuh"

namespace ht {

namespace {
// What the summing engine adds: the loss of element i.
template <class Fn, class X, class T>
struct LossOf {
  Fn fn;
  const X* x;
  const T* target;
  __device__ acc_t<T> operator()(int64_t i) const { return fn.f(load_as(x[i]), load_as(target[i])); }
};

// In two parts, so that all loads can go before the first store: what an element has, and its loss, which writes its
// gradient on the way, dx = seed weight f.dx(x, t).
struct Element {
  float x, target, seed;
  int64_t i;
};
template <class X>
struct ElementOf {
  const X* x;
  const float *target, *seed;
  __device__ Element operator()(int64_t i) const { return {load_as(x[i]), target[i], *seed, i}; }
};
template <class Fn, class X>
struct LossAndGradient {
  Fn fn;
  double weight;
  X* dx;
  __device__ float operator()(const Element& e, int64_t) const {
    dx[e.i] = store_as<X>(static_cast<float>(static_cast<double>(e.seed) * weight) * fn.dx(e.x, e.target));
    return fn.f(e.x, e.target);
  }
};

template <class Fn, class X, class T>
__global__ void gradients_kernel(Fn fn, const X* x, const T* target, const T* dy, double weight, X* dx, T* dt,
                                 int64_t n) {
  let_next_start();
  wait_for_previous();
  using A = acc_t<T>;
  const A g = static_cast<A>(static_cast<double>(load_as(*dy)) * weight);
  HT_GRID_STRIDE(i, n) {
    const A xi = load_as(x[i]), ti = load_as(target[i]);
    if (dx) dx[i] = store_as<X>(g * fn.dx(xi, ti));
    if (dt) dt[i] = store_as<T>(g * fn.dt(xi, ti));
  }
}

double weight_of(Reduction reduction, int64_t n) {
  return reduction == Reduction::mean ? 1 / static_cast<double>(n) : 1.0;
}
}  // namespace

template <class Fn>
void elementwise_loss_forward_cuda(Context& ctx, Fn fn, Reduction reduction, const Tensor& x, const Tensor& target,
                                   const Tensor& loss, const Tensor& seed, const Tensor& dx) {
  const int64_t n = x.numel();
  const double weight = weight_of(reduction, n);
  dispatch_widened(x.dtype(), target.dtype(), "loss", [&]<class X, class T>() {
    if constexpr (std::is_same_v<T, float>) {
      if (dx)
        return weighted_sum_on_cuda<T>(ctx, ElementOf<X>{x.data<X>(), target.data<T>(), seed.data<T>()}, n, weight,
                                       loss, LossAndGradient<Fn, X>{fn, weight, dx.data<X>()});
    }
    weighted_sum_on_cuda<T>(ctx, LossOf<Fn, X, T>{fn, x.data<X>(), target.data<T>()}, n, weight, loss);
  });
}

template <class Fn>
void elementwise_loss_backward_cuda(Context& ctx, Fn fn, Reduction reduction, const Tensor& x, const Tensor& target,
                                    const Tensor& dy, const Tensor& dx, const Tensor& dt) {
  const int64_t n = x.numel();
  if (n == 0) return;
  dispatch_widened(x.dtype(), target.dtype(), "loss", [&]<class X, class T>() {
    launch_early(ctx.cuda(), gradients_kernel<Fn, X, T>, grid_for(ctx.cuda(), n, 4), kBlock, fn, x.data<X>(),
                 target.data<T>(), dy.data<T>(), weight_of(reduction, n), dx.defined() ? dx.data<X>() : nullptr,
                 dt.defined() ? dt.data<T>() : nullptr, n);
  });
}

#define HT_LOSS(Fn)                                                                                               \
  template void elementwise_loss_forward_cuda<fn::Fn>(Context&, fn::Fn, Reduction, const Tensor&, const Tensor&,  \
                                                      const Tensor&, const Tensor&, const Tensor&);               \
  template void elementwise_loss_backward_cuda<fn::Fn>(Context&, fn::Fn, Reduction, const Tensor&, const Tensor&, \
                                                       const Tensor&, const Tensor&, const Tensor&);
HT_LOSS(Mse)
HT_LOSS(L1)
HT_LOSS(SmoothL1)
HT_LOSS(BinaryCrossEntropy)
HT_LOSS(BinaryCrossEntropyWithLogits)
#undef HT_LOSS

}  // namespace ht
