// What batch norm's kernels do with packs of N channels: where they lie, and the arithmetic of each direction.
#pragma once

#include "ops/batch_norm.h"
#include "ops/pool.cuh"

namespace ht::bn {

// x seen as [rows, channels]; with a pool the rows of a pass are the windows of an [n, h, w] map.
struct Geometry {
  int64_t rows = 0, channels = 0;
  int64_t h = 0, w = 0, th = 0, tw = 0;  // map and windows, those that reach over an odd edge included
  Divider by_tw, by_th;
};

inline Geometry geometry_of(const Tensor& x, BatchNormTail tail) {
  Geometry g;
  g.rows = x.shape().product(0, x.rank() - 1), g.channels = x.shape().back();
  if (!tail.pool) return g;
  g.h = x.dim(1), g.w = x.dim(2), g.th = (g.h + 1) / 2, g.tw = (g.w + 1) / 2;
  g.rows = x.dim(0) * g.th * g.tw;
  g.by_tw = Divider(g.tw), g.by_th = Divider(g.th);
  return g;
}

// n packs, `step` elements apart: all loads before any use.
template <class T, int N, int kCount>
__device__ __forceinline__ void load_rows(const T* from, int64_t step, Pack<T, N> (&to)[kCount]) {
#pragma unroll
  for (int u = 0; u < kCount; ++u) to[u] = *reinterpret_cast<const Pack<T, N>*>(from + u * step);
}

// N values a channel, by 16 bytes at a time where N is a wide pack.
template <int N, class A>
__device__ __forceinline__ void load_channels(const A* from, A (&to)[N]) {
  if constexpr (N * sizeof(A) % 16 == 0) {
    constexpr int kAtOnce = 16 / static_cast<int>(sizeof(A));
#pragma unroll
    for (int i = 0; i < N / kAtOnce; ++i) {
      const Pack<A> p = *reinterpret_cast<const Pack<A>*>(from + i * kAtOnce);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) to[i * kAtOnce + k] = p.v[k];
    }
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) to[k] = from[k];
  }
}

// Per-channel numbers of N channels, and the op's output before it is rounded to T: rounding moves neither a maximum
// nor, but for a denormal, a sign.
template <class T, int N>
struct Channels {
  using A = acc_t<T>;
  A mean[N], slope[N], beta[N];

  // mean is set already; slope holds invstd.
  __device__ __forceinline__ void load_affine(const A* gamma, const A* b, int64_t c) {
    A g[N];
    load_channels<N>(gamma + c, g);
    if (b) load_channels<N>(b + c, beta);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      slope[k] *= g[k];
      if (!b) beta[k] = 0;
    }
  }
  template <bool kRelu>
  __device__ __forceinline__ A value(A x, int k) const {
    const A y = (x - mean[k]) * slope[k] + beta[k];
    return kRelu && y < A(0) ? A(0) : y;
  }
  template <bool kRelu>
  __device__ __forceinline__ Pack<T, N> normalised(Pack<T, N> x) const {
#pragma unroll
    for (int k = 0; k < N; ++k) x.v[k] = store_as<T>(value<kRelu>(load_as(x.v[k]), k));
    return x;
  }
};

template <class A>
__device__ __forceinline__ bool beats(A v, A m) {
  return !(v <= m) && m == m;  // the first maximum stays; the first NaN wins
}
// The output is monotone in x, falling where the slope is negative: the largest output is at the largest rising(x).
__device__ __forceinline__ float rising(float x, float slope) {
  return __uint_as_float(__float_as_uint(x) ^ (__float_as_uint(slope) & 0x80000000u));
}
__device__ __forceinline__ double rising(double x, double slope) { return signbit(slope) ? -x : x; }

template <class T, int N>
__device__ __forceinline__ Pack<T, N> pack_at(const T* p) {
  return *reinterpret_cast<const Pack<T, N>*>(p);
}
template <class T, int N>
__device__ __forceinline__ void set_pack(T* p, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(p) = pack;
}

// The four pixels of a 2x2 window, N channels each, and where they lie. `whole`: it has an output.
template <class T, int N>
struct Window {
  Pack<T, N> x[4];
  int64_t at[4], out;
  bool inside[4], whole;

  __device__ __forceinline__ void place(const Geometry& g, int64_t r, int64_t c) {
    const int64_t line = g.by_tw(r), ox = r - line * g.tw, n = g.by_th(line), oy = line - n * g.th;
    const int64_t oh = g.h / 2, ow = g.w / 2, corner = ((n * g.h + 2 * oy) * g.w + 2 * ox) * g.channels + c;
    whole = oy < oh && ox < ow;
    out = ((n * oh + oy) * ow + ox) * g.channels + c;
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      inside[p] = 2 * oy + p / 2 < g.h && 2 * ox + p % 2 < g.w;
      at[p] = corner + (p / 2 * g.w + p % 2) * g.channels;
    }
  }
  __device__ __forceinline__ void load(const Geometry& g, const T* from, int64_t r, int64_t c) {
    place(g, r, c);
#pragma unroll
    for (int p = 0; p < 4; ++p)
      x[p] = pack_at<T, N>(from + (inside[p] ? at[p] : at[0]));  // no branch: all loads at once
  }
  // Of channel k: the pixel with the largest output, and its x.
  __device__ __forceinline__ int winner(int k, acc_t<T> slope, acc_t<T>& value) const {
    int first = 0;
    value = load_as(x[0].v[k]);
    acc_t<T> best = rising(value, slope);
#pragma unroll
    for (int p = 1; p < 4; ++p) {
      const acc_t<T> other = load_as(x[p].v[k]), risen = rising(other, slope);
      if (beats(risen, best)) first = p, value = other, best = risen;
    }
    return first;
  }
  __device__ __forceinline__ Pack<T, N> pooled(const Channels<T, N>& channels) const {
    Pack<T, N> best;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      acc_t<T> value;
      winner(k, channels.slope[k], value);
      best.v[k] = store_as<T>(channels.template value<true>(value, k));
    }
    return best;
  }
};

// Sums of a thread's N channels: of x - K and (x - K)^2, where K, the first row, keeps a mean far larger than the
// spread exact.
template <class T, int N>
struct Moments {
  using A = acc_t<T>;
  A shift[N] = {}, sum[N] = {}, squares[N] = {};

  __device__ __forceinline__ void add(const Pack<T, N>& x) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const A d = load_as(x.v[k]) - shift[k];
      sum[k] += d;
      squares[k] += d * d;
    }
  }
};

// The same for backward: of d and of d (x - mean), d being dy behind the tail.
template <class T, int N>
struct GradientSums {
  using A = acc_t<T>;
  A sum[N] = {}, product[N] = {};

  template <bool kRelu>
  __device__ __forceinline__ void add(const Channels<T, N>& channels, const Pack<T, N>& x, const Pack<T, N>& dy) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const A value = load_as(x.v[k]);
      A d = load_as(dy.v[k]);
      if (kRelu && !(channels.template value<false>(value, k) > A(0))) d = 0;
      sum[k] += d;
      product[k] += d * (value - channels.mean[k]);
    }
  }
  __device__ __forceinline__ void add(const Channels<T, N>& channels, const Window<T, N>& w, const Pack<T, N>& dy) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      A v;
      w.winner(k, channels.slope[k], v);
      if (!(w.whole && channels.template value<false>(v, k) > A(0))) continue;
      const A d = load_as(dy.v[k]);
      sum[k] += d;
      product[k] += d * (v - channels.mean[k]);
    }
  }
};

// dx = slope (d - offset - (x - mean) pull) = slope d + tilt (x - mean) + shift.
template <class T, int N>
struct InputGradient {
  using A = acc_t<T>;
  Channels<T, N> channels;
  A tilt[N], shift[N];

  // They hold pull and offset before.
  __device__ __forceinline__ void load_affine(const A* gamma, const A* beta, int64_t c) {
    channels.load_affine(gamma, beta, c);
#pragma unroll
    for (int k = 0; k < N; ++k) tilt[k] *= -channels.slope[k], shift[k] *= -channels.slope[k];
  }
  // What all of x's gradient but that of d is.
  __device__ __forceinline__ A base(A x, int k) const { return (x - channels.mean[k]) * tilt[k] + shift[k]; }

  template <bool kRelu>
  __device__ __forceinline__ Pack<T, N> of(Pack<T, N> x, const Pack<T, N>& dy) const {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const A value = load_as(x.v[k]);
      A d = load_as(dy.v[k]);
      if (kRelu && !(channels.template value<false>(value, k) > A(0))) d = 0;
      x.v[k] = store_as<T>(channels.slope[k] * d + base(value, k));
    }
    return x;
  }
  // Of a window, in the place of its x.
  __device__ __forceinline__ void of(Window<T, N>& w, const Pack<T, N>& dy) const {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      A v;
      const int winner = w.winner(k, channels.slope[k], v);
      const bool passes = w.whole && channels.template value<false>(v, k) > A(0);
      const A d = passes ? channels.slope[k] * load_as(dy.v[k]) : A(0);
#pragma unroll
      for (int p = 0; p < 4; ++p) w.x[p].v[k] = store_as<T>(base(load_as(w.x[p].v[k]), k) + (winner == p ? d : A(0)));
    }
  }
};

}  // namespace ht::bn
