// avg_pool2d on CUDA: padding counts as zeros, so the divisor is always kernel^2.
#include "ops/pool.cuh"

namespace ht {

namespace {
template <class T, int N>
__global__ void forward_kernel(Pool2d g, const T* x, T* y) {
  using A = acc_t<T>;
  const int64_t packs = g.c / N;
  const A share = A(1) / static_cast<A>(g.kernel * g.kernel);
  HT_GRID_STRIDE(i, g.n * g.oh * g.ow * packs) {
    const int64_t c = i % packs * N, ox = i / packs % g.ow, oy = i / packs / g.ow % g.oh, n = i / packs / g.ow / g.oh;
    const Pool2d::Range ys = g.window(oy, g.h), xs = g.window(ox, g.w);
    A sum[N] = {}, v[N];
    for (int64_t iy = ys.begin; iy < ys.end; ++iy)
      for (int64_t ix = xs.begin; ix < xs.end; ++ix) {
        load_pack<T, N>(x + ((n * g.h + iy) * g.w + ix) * g.c + c, v);
#pragma unroll
        for (int k = 0; k < N; ++k) sum[k] += v[k];
      }
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] *= share;
    store_pack<T, N>(sum, y + ((n * g.oh + oy) * g.ow + ox) * g.c + c);
  }
}

template <class T, int N>
__global__ void backward_kernel(Pool2d g, const T* dy, T* dx) {
  using A = acc_t<T>;
  const int64_t packs = g.c / N;
  const A share = A(1) / static_cast<A>(g.kernel * g.kernel);
  HT_GRID_STRIDE(i, g.n * g.h * g.w * packs) {
    const int64_t c = i % packs * N, px = i / packs % g.w, py = i / packs / g.w % g.h, n = i / packs / g.w / g.h;
    const Pool2d::Range oys = g.windows_over(py, g.oh), oxs = g.windows_over(px, g.ow);
    A sum[N] = {}, v[N];
    for (int64_t oy = oys.begin; oy < oys.end; ++oy)
      for (int64_t ox = oxs.begin; ox < oxs.end; ++ox) {
        load_pack<T, N>(dy + ((n * g.oh + oy) * g.ow + ox) * g.c + c, v);
#pragma unroll
        for (int k = 0; k < N; ++k) sum[k] += v[k];
      }
#pragma unroll
    for (int k = 0; k < N; ++k) sum[k] *= share;
    store_pack<T, N>(sum, dx + ((n * g.h + py) * g.w + px) * g.c + c);
  }
}
}  // namespace

void avg_pool2d_forward_cuda(Context& ctx, const Pool2d& g, const Tensor& x, const Tensor& y) {
  if (y.numel() == 0) return;
  dispatch_packs({x, y}, g.c, [&]<class T, int N>() {
    forward_kernel<T, N>
        <<<grid_for(ctx.cuda(), y.numel() / N), kBlock, 0, ctx.cuda().stream()>>>(g, x.data<T>(), y.data<T>());
    HT_LAUNCHED("avg_pool2d forward");
  });
}

void avg_pool2d_backward_cuda(Context& ctx, const Pool2d& g, const Tensor& dy, const Tensor& dx) {
  if (dx.numel() == 0) return;
  dispatch_packs({dy, dx}, g.c, [&]<class T, int N>() {
    backward_kernel<T, N>
        <<<grid_for(ctx.cuda(), dx.numel() / N), kBlock, 0, ctx.cuda().stream()>>>(g, dy.data<T>(), dx.data<T>());
    HT_LAUNCHED("avg_pool2d backward");
  });
}

}  // namespace ht
