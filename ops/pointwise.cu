// The pointwise ops on CUDA: one kernel forward, one backward, 16 bytes a thread and access.
#include "core/cuda_kernels.cuh"
#include "ops/pointwise_functions.h"

namespace ht {

namespace {
template <class Fn, class T>
__global__ void forward_kernel(Fn fn, const T* x, T* y, int64_t n) {
  using P = Pack<T>;
  const int64_t packs = n / P::size;
  HT_GRID_STRIDE(i, packs) {
    const P in = reinterpret_cast<const P*>(x)[i];
    P out;
#pragma unroll
    for (int k = 0; k < P::size; ++k) out.v[k] = store_as<T>(fn.f(load_as(in.v[k])));
    reinterpret_cast<P*>(y)[i] = out;
  }
  HT_GRID_STRIDE(j, n - packs * P::size) {
    const int64_t i = packs * P::size + j;
    y[i] = store_as<T>(fn.f(load_as(x[i])));
  }
}

template <class Fn, class T>
__global__ void backward_kernel(Fn fn, const T* saved, const T* dy, T* dx, int64_t n) {
  using P = Pack<T>;
  constexpr bool kReads = Fn::saves != fn::Saves::none;
  const int64_t packs = n / P::size;
  HT_GRID_STRIDE(i, packs) {
    const P d = reinterpret_cast<const P*>(dy)[i];
    const P v = kReads ? reinterpret_cast<const P*>(saved)[i] : d;
    P out;
#pragma unroll
    for (int k = 0; k < P::size; ++k) out.v[k] = store_as<T>(fn.dx(load_as(d.v[k]), load_as(v.v[k])));
    reinterpret_cast<P*>(dx)[i] = out;
  }
  HT_GRID_STRIDE(j, n - packs * P::size) {
    const int64_t i = packs * P::size + j;
    dx[i] = store_as<T>(fn.dx(load_as(dy[i]), load_as(saved[i])));
  }
}
}  // namespace

template <class Fn>
void pointwise_forward_cuda(Context& ctx, Fn fn, const Tensor& x, const Tensor& y) {
  if (x.numel() == 0) return;
  const Tensor in = aligned(x);
  dispatch_floating(x.dtype(), "pointwise", [&]<class T>() {
    const int64_t n = x.numel();
    forward_kernel<<<grid_for(ctx.cuda(), n, Pack<T>::size), kBlock, 0, ctx.cuda().stream()>>>(fn, in.data<T>(),
                                                                                               y.data<T>(), n);
    HT_LAUNCHED("pointwise forward");
  });
}

template <class Fn>
void pointwise_backward_cuda(Context& ctx, Fn fn, const Tensor& saved, const Tensor& dy, const Tensor& dx) {
  if (dy.numel() == 0) return;
  const Tensor s = aligned(saved), d = aligned(dy);
  dispatch_floating(dy.dtype(), "pointwise", [&]<class T>() {
    const int64_t n = dy.numel();
    backward_kernel<<<grid_for(ctx.cuda(), n, Pack<T>::size), kBlock, 0, ctx.cuda().stream()>>>(
        fn, s.data<T>(), d.data<T>(), dx.data<T>(), n);
    HT_LAUNCHED("pointwise backward");
  });
}

#define HT_POINTWISE(Fn)                                                                        \
  template void pointwise_forward_cuda<fn::Fn>(Context&, fn::Fn, const Tensor&, const Tensor&); \
  template void pointwise_backward_cuda<fn::Fn>(Context&, fn::Fn, const Tensor&, const Tensor&, const Tensor&);
HT_POINTWISE(Abs)
HT_POINTWISE(Clamp)
HT_POINTWISE(Exp)
HT_POINTWISE(Gelu)
HT_POINTWISE(Log)
HT_POINTWISE(Neg)
HT_POINTWISE(Pow)
HT_POINTWISE(Reciprocal)
HT_POINTWISE(Relu)
HT_POINTWISE(Rsqrt)
HT_POINTWISE(Scale)
HT_POINTWISE(Sigmoid)
HT_POINTWISE(Sqrt)
HT_POINTWISE(Tanh)
#undef HT_POINTWISE

}  // namespace ht
