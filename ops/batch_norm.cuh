// What batch norm's forward and backward kernels share. A thread takes a pack of N channels of a row; blocks are
// kColumns packs wide and share the rows. With a pool, the rows of a pass are the 2x2 windows of the map.
#pragma once

#include "ops/batch_norm.h"
#include "ops/pool.cuh"

namespace ht::bn {

inline constexpr int kThreads = 512;
inline constexpr int kColumns = 32;  // packs of channels in a block, at most

// x seen as [rows, channels]; with a pool the rows of a pass are the windows of an [n, h, w] map.
struct Geometry {
  int64_t rows = 0, channels = 0;
  int64_t h = 0, w = 0, th = 0, tw = 0;  // map and windows, those that reach over an odd edge included
};

struct Launch {
  dim3 grid, block;
};

// Enough blocks to fill the device twice, no more than there are rows.
inline Launch launch_for(const CudaContext& cuda, int64_t rows, int64_t packs) {
  const unsigned x = static_cast<unsigned>(std::min<int64_t>(packs, kColumns)), y = kThreads / x;
  const unsigned columns = static_cast<unsigned>((packs + x - 1) / x);
  const int64_t most = std::max<int64_t>(1, int64_t{cuda.sm_count} * 2 / columns);
  const int64_t need = std::max<int64_t>(1, (rows + y - 1) / y);
  return {dim3(static_cast<unsigned>(std::min(need, most)), columns), dim3(x, y)};
}

// Adds the N pairs of each thread over the block's rows, then over the blocks: by atomics into [2, channels], or, for
// `partial`, into a row of [gridDim.x, 2, channels] that sum_partials adds in order.
template <int N, class A>
__device__ void add_pairs(const A (&first)[N], const A (&second)[N], int64_t c, int64_t channels, A* out,
                          bool partial) {
  extern __shared__ char raw[];
  A* shared = reinterpret_cast<A*>(raw);
  const int width = static_cast<int>(blockDim.x) * 2 * N;
  A* mine = shared + threadIdx.y * width;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    mine[threadIdx.x * N + k] = c < channels ? first[k] : A(0);
    mine[(blockDim.x + threadIdx.x) * N + k] = c < channels ? second[k] : A(0);
  }
  __syncthreads();
  const int flat = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  const int64_t base = static_cast<int64_t>(blockIdx.y) * blockDim.x * N;
  for (int i = flat; i < width; i += static_cast<int>(blockDim.x * blockDim.y)) {
    A sum = 0;
    for (unsigned r = 0; r < blockDim.y; ++r) sum += shared[r * width + i];
    const int half = width / 2;
    const int64_t channel = base + i % half;
    if (channel >= channels) continue;
    A* to = out + (i / half) * channels + channel;
    if (partial) {
      to[static_cast<int64_t>(blockIdx.x) * 2 * channels] = sum;
    } else {
      atomicAdd(to, sum);
    }
  }
}

template <class A>
__global__ void sum_partials_kernel(const A* partial, int64_t parts, int64_t width, A* out) {
  HT_GRID_STRIDE(i, width) {
    A sum = 0;
    for (int64_t p = 0; p < parts; ++p) sum += partial[p * width + i];
    out[i] = sum;
  }
}

// Per-channel numbers of N channels, and the op's output value as it is stored: rounded to T.
template <class T, int N>
struct Channels {
  acc_t<T> mean[N], slope[N], beta[N];

  __device__ void load(const acc_t<T>* m, const acc_t<T>* invstd, const acc_t<T>* gamma, const acc_t<T>* b, int64_t c) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      mean[k] = m[c + k];
      slope[k] = gamma[c + k] * invstd[c + k];
      beta[k] = b ? b[c + k] : acc_t<T>(0);
    }
  }
  template <bool kRelu>
  __device__ acc_t<T> value(acc_t<T> x, int k) const {
    const acc_t<T> y = load_as(store_as<T>((x - mean[k]) * slope[k] + beta[k]));
    return kRelu && y < acc_t<T>(0) ? acc_t<T>(0) : y;
  }
};

// The four pixels of window (n, oy, ox) -> offsets of their channels; false for those outside the map.
__device__ __forceinline__ bool pixel(const Geometry& g, int64_t n, int64_t oy, int64_t ox, int p, int64_t& at) {
  const int64_t y = 2 * oy + p / 2, x = 2 * ox + p % 2;
  at = ((n * g.h + y) * g.w + x) * g.channels;
  return y < g.h && x < g.w;
}

template <class A>
__device__ __forceinline__ bool beats(A v, A m) {
  return v > m || (v != v && m == m);  // the first maximum stays; the first NaN wins
}

inline Geometry geometry_of(const Tensor& x, BatchNormTail tail) {
  Geometry g{x.shape().product(0, x.rank() - 1), x.shape().back()};
  if (!tail.pool) return g;
  g.h = x.dim(1), g.w = x.dim(2), g.th = (g.h + 1) / 2, g.tw = (g.w + 1) / 2;
  g.rows = x.dim(0) * g.th * g.tw;
  return g;
}

// Runs a kernel that adds pairs, and gives back [2, channels] sums of it.
template <class A, class F>
Tensor pair_sums(Context& ctx, const Launch& launch, int pack, int64_t channels, F&& run) {
  const size_t shared = launch.block.x * launch.block.y * 2 * static_cast<size_t>(pack) * sizeof(A);
  const CudaStream stream = ctx.cuda().stream();
  if (!deterministic()) {
    const Tensor sums = Tensor::zeros({2, channels}, dtype_of<A>(), ctx.device());
    run(shared, sums.data<A>(), false);
    return sums;
  }
  const int64_t parts = launch.grid.x;
  const Tensor partial = Tensor::empty({parts, 2, channels}, dtype_of<A>(), ctx.device());
  const Tensor sums = Tensor::empty({2, channels}, dtype_of<A>(), ctx.device());
  run(shared, partial.data<A>(), true);
  sum_partials_kernel<A><<<grid_for(ctx.cuda(), 2 * channels), kBlock, 0, stream>>>(partial.data<A>(), parts,
                                                                                    2 * channels, sums.data<A>());
  HT_LAUNCHED("batch_norm partial sums");
  return sums;
}

}  // namespace ht::bn
