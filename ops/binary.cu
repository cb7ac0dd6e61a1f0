// The two-input ops on CUDA. Operands that walk alike are read 16 bytes at a time; broadcast ones by index.
#include "core/cuda_kernels.cuh"
#include "ops/broadcast.h"
#include "ops/pointwise_functions.h"

namespace ht {

namespace {
// What a kernel computes from dy, a and b; what it does not read is passed as 0.
template <class Fn>
struct Forward {
  static constexpr bool dy = false, a = true, b = true;
  Fn fn;
  template <class A>
  __device__ A operator()(A, A u, A v) const {
    return fn.f(u, v);
  }
};
template <class Fn, int kOperand>
struct Backward {
  static constexpr fn::Reads reads = kOperand == 0 ? Fn::da_reads : Fn::db_reads;
  static constexpr bool dy = true, a = fn::reads_a(reads), b = fn::reads_b(reads);
  Fn fn;
  template <class A>
  __device__ A operator()(A d, A u, A v) const {
    return kOperand == 0 ? fn.da(d, u, v) : fn.db(d, u, v);
  }
};

template <bool kRead, class T>
__device__ __forceinline__ acc_t<T> read(const T* p, int64_t i) {
  if constexpr (kRead) {
    return load_as(p[i]);
  } else {
    return acc_t<T>(0);
  }
}

template <class F, class T>
__global__ void same_shape_kernel(F f, const T* dy, const T* a, const T* b, T* y, int64_t n) {
  using P = Pack<T>;
  const int64_t packs = n / P::size;
  HT_GRID_STRIDE(i, packs) {
    P d{}, u{}, v{}, out;
    if constexpr (F::dy) d = reinterpret_cast<const P*>(dy)[i];
    if constexpr (F::a) u = reinterpret_cast<const P*>(a)[i];
    if constexpr (F::b) v = reinterpret_cast<const P*>(b)[i];
#pragma unroll
    for (int k = 0; k < P::size; ++k) out.v[k] = store_as<T>(f(load_as(d.v[k]), load_as(u.v[k]), load_as(v.v[k])));
    reinterpret_cast<P*>(y)[i] = out;
  }
  HT_GRID_STRIDE(j, n - packs * P::size) {
    const int64_t i = packs * P::size + j;
    y[i] = store_as<T>(f(read<F::dy>(dy, i), read<F::a>(a, i), read<F::b>(b, i)));
  }
}

template <class F, class T>
__global__ void broadcast_kernel(F f, BroadcastPlan plan, const T* dy, const T* a, const T* b, T* y, int64_t n) {
  HT_GRID_STRIDE(i, n) {
    int64_t rest = i, at_a = 0, at_b = 0;
    for (int axis = plan.rank - 1; axis >= 0; --axis) {
      const size_t k = static_cast<size_t>(axis);
      const int64_t at = axis > 0 ? rest % plan.sizes[k] : rest;
      rest /= plan.sizes[k];
      at_a += at * plan.a_strides[k];
      at_b += at * plan.b_strides[k];
    }
    y[i] = store_as<T>(f(read<F::dy>(dy, i), read<F::a>(a, at_a), read<F::b>(b, at_b)));
  }
}

template <class F>
void launch(Context& ctx, F f, const BroadcastPlan& plan, const Tensor& dy, const Tensor& a, const Tensor& b,
            const Tensor& y) {
  const int64_t n = y.numel();
  if (n == 0) return;
  const CudaStream stream = ctx.cuda().stream();
  const bool same = plan.rank == 1 && (plan.a_stride() == 1 || !F::a) && (plan.b_stride() == 1 || !F::b) &&
                    aligned16(dy.data()) && aligned16(a.data()) && aligned16(b.data()) && aligned16(y.data());
  dispatch_floating(y.dtype(), "binary", [&]<class T>() {
    const T *d = static_cast<const T*>(dy.data()), *u = static_cast<const T*>(a.data()),
            *v = static_cast<const T*>(b.data());
    if (same) {
      same_shape_kernel<<<grid_for(ctx.cuda(), n, Pack<T>::size), kBlock, 0, stream>>>(f, d, u, v, y.data<T>(), n);
    } else {
      broadcast_kernel<<<grid_for(ctx.cuda(), n, 2), kBlock, 0, stream>>>(f, plan, d, u, v, y.data<T>(), n);
    }
    HT_LAUNCHED("binary");
  });
}
}  // namespace

template <class Fn>
void binary_forward_cuda(Context& ctx, Fn fn, const BroadcastPlan& plan, const Tensor& a, const Tensor& b,
                         const Tensor& y) {
  launch(ctx, Forward<Fn>{fn}, plan, {}, a, b, y);
}

template <class Fn>
void binary_backward_cuda(Context& ctx, Fn fn, const BroadcastPlan& plan, int operand, const Tensor& dy,
                          const Tensor& a, const Tensor& b, const Tensor& dx) {
  if (operand == 0) {
    launch(ctx, Backward<Fn, 0>{fn}, plan, dy, a, b, dx);
  } else {
    launch(ctx, Backward<Fn, 1>{fn}, plan, dy, a, b, dx);
  }
}

#define HT_BINARY(Fn)                                                                                             \
  template void binary_forward_cuda<fn::Fn>(Context&, fn::Fn, const BroadcastPlan&, const Tensor&, const Tensor&, \
                                            const Tensor&);                                                       \
  template void binary_backward_cuda<fn::Fn>(Context&, fn::Fn, const BroadcastPlan&, int, const Tensor&,          \
                                             const Tensor&, const Tensor&, const Tensor&);
HT_BINARY(Add)
HT_BINARY(Sub)
HT_BINARY(Mul)
HT_BINARY(Div)
#undef HT_BINARY

}  // namespace ht
