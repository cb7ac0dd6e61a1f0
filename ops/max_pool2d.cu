// max_pool2d on CUDA. Backward finds the maximum again from x; every element of dx is written by one thread: no
// atomics.
#include "ops/pool.cuh"

namespace ht {

namespace {
template <class A>
__device__ __forceinline__ bool beats(A v, A m) {
  return v > m || (v != v && m == m);  // the first maximum stays; the first NaN wins over all numbers
}

template <class T, int N>
__global__ void forward_kernel(Pool2d g, const T* x, T* y) {
  using A = acc_t<T>;
  const int64_t packs = g.c / N;
  HT_GRID_STRIDE(i, g.n * g.oh * g.ow * packs) {
    const int64_t c = i % packs * N, ox = i / packs % g.ow, oy = i / packs / g.ow % g.oh, n = i / packs / g.ow / g.oh;
    const Pool2d::Range ys = g.window(oy, g.h), xs = g.window(ox, g.w);
    A best[N], v[N];
    for (int64_t iy = ys.begin; iy < ys.end; ++iy)
      for (int64_t ix = xs.begin; ix < xs.end; ++ix) {
        load_pack<T, N>(x + ((n * g.h + iy) * g.w + ix) * g.c + c, v);
        const bool first = iy == ys.begin && ix == xs.begin;
#pragma unroll
        for (int k = 0; k < N; ++k)
          if (first || beats(v[k], best[k])) best[k] = v[k];
      }
    store_pack<T, N>(best, y + ((n * g.oh + oy) * g.ow + ox) * g.c + c);
  }
}

// Windows that touch but don't overlap: a thread writes the four pixels of its window. Windows that reach over the edge
// of an odd size are left-over pixels, which get zeros.
template <class T, int N>
__global__ void backward_halves_kernel(Pool2d g, const T* x, const T* dy, T* dx) {
  using A = acc_t<T>;
  const int64_t packs = g.c / N, th = (g.h + 1) / 2, tw = (g.w + 1) / 2;
  HT_GRID_STRIDE(i, g.n * th * tw * packs) {
    const int64_t c = i % packs * N, ox = i / packs % tw, oy = i / packs / tw % th, n = i / packs / tw / th;
    const bool inside = oy < g.oh && ox < g.ow;
    A v[4][N], d[N] = {}, out[N];
    int winner[N];
    if (inside) {
      load_pack<T, N>(dy + ((n * g.oh + oy) * g.ow + ox) * g.c + c, d);
#pragma unroll
      for (int p = 0; p < 4; ++p)
        load_pack<T, N>(x + ((n * g.h + 2 * oy + p / 2) * g.w + 2 * ox + p % 2) * g.c + c, v[p]);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        winner[k] = 0;
        A best = v[0][k];
#pragma unroll
        for (int p = 1; p < 4; ++p)
          if (beats(v[p][k], best)) {
            best = v[p][k];
            winner[k] = p;
          }
      }
    }
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const int64_t iy = 2 * oy + p / 2, ix = 2 * ox + p % 2;
      if (iy >= g.h || ix >= g.w) continue;
#pragma unroll
      for (int k = 0; k < N; ++k) out[k] = inside && winner[k] == p ? d[k] : A(0);
      store_pack<T, N>(out, dx + ((n * g.h + iy) * g.w + ix) * g.c + c);
    }
  }
}

// Any window: a pixel gathers from the windows over it of which it is the first maximum.
template <class T>
__global__ void backward_kernel(Pool2d g, const T* x, const T* dy, T* dx) {
  using A = acc_t<T>;
  HT_GRID_STRIDE(i, g.n * g.h * g.w * g.c) {
    const int64_t c = i % g.c, px = i / g.c % g.w, py = i / g.c / g.w % g.h, n = i / g.c / g.w / g.h;
    const Pool2d::Range oys = g.windows_over(py, g.oh), oxs = g.windows_over(px, g.ow);
    A sum = 0;
    for (int64_t oy = oys.begin; oy < oys.end; ++oy)
      for (int64_t ox = oxs.begin; ox < oxs.end; ++ox) {
        const Pool2d::Range ys = g.window(oy, g.h), xs = g.window(ox, g.w);
        A best = 0;
        int64_t at = -1;
        for (int64_t iy = ys.begin; iy < ys.end; ++iy)
          for (int64_t ix = xs.begin; ix < xs.end; ++ix) {
            const A v = load_as(x[((n * g.h + iy) * g.w + ix) * g.c + c]);
            if (at < 0 || beats(v, best)) {
              best = v;
              at = iy * g.w + ix;
            }
          }
        if (at == py * g.w + px) sum += load_as(dy[((n * g.oh + oy) * g.ow + ox) * g.c + c]);
      }
    dx[i] = store_as<T>(sum);
  }
}
}  // namespace

void max_pool2d_forward_cuda(Context& ctx, const Pool2d& g, const Tensor& x, const Tensor& y) {
  if (y.numel() == 0) return;
  dispatch_packs({x, y}, g.c, [&]<class T, int N>() {
    forward_kernel<T, N>
        <<<grid_for(ctx.cuda(), y.numel() / N), kBlock, 0, ctx.cuda().stream()>>>(g, x.data<T>(), y.data<T>());
    HT_LAUNCHED("max_pool2d forward");
  });
}

void max_pool2d_backward_cuda(Context& ctx, const Pool2d& g, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  if (dx.numel() == 0) return;
  const CudaStream stream = ctx.cuda().stream();
  if (!g.halves()) {
    dispatch_floating(x.dtype(), "max_pool2d", [&]<class T>() {
      backward_kernel<T>
          <<<grid_for(ctx.cuda(), dx.numel()), kBlock, 0, stream>>>(g, x.data<T>(), dy.data<T>(), dx.data<T>());
      HT_LAUNCHED("max_pool2d backward");
    });
    return;
  }
  const bool aligned = aligned16(dy.data());
  dispatch_packs({x, aligned ? dx : dy}, g.c, [&]<class T, int N>() {
    backward_halves_kernel<T, N><<<grid_for(ctx.cuda(), dx.numel() / N / 4 + 1), kBlock, 0, stream>>>(
        g, x.data<T>(), dy.data<T>(), dx.data<T>());
    HT_LAUNCHED("max_pool2d backward");
  });
}

}  // namespace ht
