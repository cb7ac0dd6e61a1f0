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

// Where a kernel's blocks add their pairs of sums, [2, channels]: by atomics into zeros, or, to give the same bits
// every time, each into its own row of [parts, 2, channels]. The last block takes the sums and leaves the zeros as they
// were.
template <class A>
struct PairSums {
  A* at;
  int64_t channels;
  int64_t parts;     // 0: atomics
  unsigned* ticket;  // counts blocks; 0 before and after

  __device__ void add(int64_t i, A value) const {
    if (parts) {
      at[int64_t{blockIdx.x} * 2 * channels + i] = value;
    } else {
      atomicAdd(at + i, value);
    }
  }
  // Called by whole blocks after their adds: true in the one that is the last. There `at` then holds the sums.
  __device__ bool complete(int thread, int threads) const {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    const unsigned blocks = gridDim.x * gridDim.y;
    if (thread == 0) last = atomicInc(ticket, blocks - 1) == blocks - 1;
    __syncthreads();
    if (!last || !parts) return last;
    __threadfence();
    for (int64_t i = thread; i < 2 * channels; i += threads) {
      A sum = 0;
      for (int64_t p = 0; p < parts; ++p) sum += __ldcg(at + p * 2 * channels + i);
      at[i] = sum;
    }
    __syncthreads();
    return true;
  }
  __device__ double first(int64_t c) const { return static_cast<double>(__ldcg(at + c)); }
  __device__ double second(int64_t c) const { return static_cast<double>(__ldcg(at + channels + c)); }
  // The last block may use the place of a second sum.
  __device__ void keep(int64_t c, A value) const { at[channels + c] = value; }
  __device__ A kept(int64_t c) const { return at[channels + c]; }
  __device__ void clear(int64_t c) const {
    if (!parts) at[c] = at[channels + c] = A(0);
  }
};

__device__ __forceinline__ int flat_thread() { return static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x); }
__device__ __forceinline__ int flat_threads() { return static_cast<int>(blockDim.x * blockDim.y); }

// Adds the N pairs of each thread over the block's rows, then over the blocks.
template <int N, class A>
__device__ void add_pairs(const A (&first)[N], const A (&second)[N], int64_t c, const PairSums<A>& sums) {
  extern __shared__ char raw[];
  A* shared = reinterpret_cast<A*>(raw);
  const int width = static_cast<int>(blockDim.x) * 2 * N;
  A* mine = shared + threadIdx.y * width;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    mine[threadIdx.x * N + k] = c < sums.channels ? first[k] : A(0);
    mine[(blockDim.x + threadIdx.x) * N + k] = c < sums.channels ? second[k] : A(0);
  }
  __syncthreads();
  const int64_t base = static_cast<int64_t>(blockIdx.y) * blockDim.x * N;
  for (int i = flat_thread(); i < width; i += flat_threads()) {
    A sum = 0;
    for (unsigned r = 0; r < blockDim.y; ++r) sum += shared[r * width + i];
    const int half = width / 2;
    const int64_t channel = base + i % half;
    if (channel < sums.channels) sums.add((i / half) * sums.channels + channel, sum);
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

// Runs a kernel that adds pairs: run(bytes of shared memory, sums).
template <class A, class F>
void with_pair_sums(Context& ctx, const Launch& launch, int pack, int64_t channels, F&& run) {
  constexpr size_t kTicket = 256;  // bytes, so that the sums stay aligned
  const size_t shared = launch.block.x * launch.block.y * 2 * static_cast<size_t>(pack) * sizeof(A);
  char* zeros = static_cast<char*>(ctx.cuda().zeros_of(kTicket + 2 * static_cast<size_t>(channels) * sizeof(A)));
  PairSums<A> sums{reinterpret_cast<A*>(zeros + kTicket), channels, 0, reinterpret_cast<unsigned*>(zeros)};
  Tensor partial;
  if (deterministic()) {
    partial = Tensor::empty({launch.grid.x, 2, channels}, dtype_of<A>(), ctx.device());
    sums.at = partial.data<A>(), sums.parts = launch.grid.x;
  }
  run(shared, sums);
}

}  // namespace ht::bn
