// What batch norm's forward and backward passes share. Each direction is two passes: the first adds a pair of sums a
// channel, the second starts with what follows from them and has a row of blocks more, which write what is per channel.
// A thread takes a pack of N channels of some rows at once; blocks are kColumns packs wide and share the rows. With a
// pool, the rows of a pass are the 2x2 windows of the map.
#pragma once

#include "ops/batch_norm_packs.cuh"

namespace ht::bn {

inline constexpr int kThreads = 256;
inline constexpr int kMostThreads = 512;
inline constexpr int kColumns = 32;  // packs of channels in a block, at most

struct Launch {
  dim3 grid, block;
};

// As many blocks as run at once, `per_sm` each, but no more than there are rows.
inline Launch launch_for(const CudaContext& cuda, int64_t rows, int64_t packs, int per_sm,
                         unsigned threads = kThreads) {
  const unsigned x = static_cast<unsigned>(std::min<int64_t>(packs, kColumns)), y = threads / x;
  const unsigned columns = static_cast<unsigned>((packs + x - 1) / x);
  const int64_t most = std::max<int64_t>(1, int64_t{cuda.sm_count} * per_sm / columns);
  const int64_t need = std::max<int64_t>(1, (rows + y - 1) / y);
  return {dim3(static_cast<unsigned>(std::min(need, most)), columns), dim3(x, y)};
}

__device__ __forceinline__ int flat_thread() { return static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x); }
__device__ __forceinline__ int flat_threads() { return static_cast<int>(blockDim.x * blockDim.y); }
template <int N>
__device__ __forceinline__ int64_t first_channel() {
  return (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * N;
}

// Calls f.operator()<n>(r) for rows r, r + step, .. of [start, rows): kRows at once, the last ones one by one.
template <int kRows, class F>
__device__ __forceinline__ void for_rows(int64_t start, int64_t step, int64_t rows, F&& f) {
  int64_t r = start;
  for (; r + (kRows - 1) * step < rows; r += kRows * step) f.template operator()<kRows>(r);
  for (; r < rows; r += step) f.template operator()<1>(r);
}

// Pairs of sums, [2, channels]: added up by atomics into zeros or, to give the same bits every time, each block's in
// its own row of [parts, 2, channels], of which the last block makes the first row the sum. The pass that reads them
// leaves the zeros as they were.
template <class A>
struct PairSums {
  A* at = nullptr;  // null: there are none
  int64_t channels = 0, parts = 0;
  unsigned* ticket = nullptr;  // counts blocks; 0 before and after

  __device__ void add(int64_t i, A value) const {
    if (parts) {
      at[int64_t{blockIdx.x} * 2 * channels + i] = value;
    } else {
      atomicAdd(at + i, value);
    }
  }
  // The same for four, where i is a multiple of 4.
  __device__ void add(int64_t i, const float (&v)[4]) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (!parts) {
      atomicAdd(reinterpret_cast<float4*>(at + i), make_float4(v[0], v[1], v[2], v[3]));
      return;
    }
#endif
    for (int k = 0; k < 4; ++k) add(i + k, v[k]);
  }
  // Called by whole blocks after their adds.
  __device__ void finish() const {
    if (!parts || !is_last_block(ticket)) return;
    for (int64_t i = flat_thread(); i < 2 * channels; i += flat_threads()) {
      A sum = 0;
      for (int64_t p = 0; p < parts; ++p) sum += __ldcg(at + p * 2 * channels + i);
      at[i] = sum;
    }
  }
  __device__ double first(int64_t c) const { return static_cast<double>(at[c]); }
  __device__ double second(int64_t c) const { return static_cast<double>(at[channels + c]); }
  // Called by whole blocks once they have read, `arrival` being shared, and again at their end, so that only one warp
  // waits for the count: the last block to have read makes the sums zeros again.
  __device__ void arrive(unsigned& arrival) const {
    if (!at || parts) return;
    __syncthreads();
    if (flat_thread() > 0) return;
    __threadfence();  // of this thread only, as in is_last_block
    arrival = atomicInc(ticket, gridDim.x * gridDim.y - 1);
  }
  __device__ void leave(const unsigned& arrival) const {
    if (!at || parts) return;
    __syncthreads();
    if (arrival != gridDim.x * gridDim.y - 1) return;
    for (int64_t i = flat_thread(); i < 2 * channels; i += flat_threads()) at[i] = A(0);
  }
};

template <class A>
PairSums<A> make_pair_sums(Context& ctx, const Launch& launch, int64_t channels, Tensor& partial) {
  constexpr size_t kTicket = 256;  // bytes, so that the sums stay aligned
  char* zeros = static_cast<char*>(ctx.cuda().zeros_of(kTicket + 2 * static_cast<size_t>(channels) * sizeof(A)));
  PairSums<A> sums{reinterpret_cast<A*>(zeros + kTicket), channels, 0, reinterpret_cast<unsigned*>(zeros)};
  if (deterministic()) {
    partial = Tensor::empty({launch.grid.x, 2, channels}, dtype_of<A>(), ctx.device());
    sums.at = partial.data<A>(), sums.parts = launch.grid.x;
  }
  return sums;
}

// Adds the N pairs of each thread over the block's rows, then over the blocks.
template <int N, class A>
__device__ void add_pairs(const A (&first)[N], const A (&second)[N], const PairSums<A>& sums) {
  // [warp][2 N][lane], padded so that values of one thread, read across, do not meet in a bank.
  constexpr int kStride = 36, kWarp = 2 * N * kStride;
  __shared__ A shared[kMostThreads / 32 * kWarp];
  const int thread = flat_thread(), threads = flat_threads(), columns = static_cast<int>(blockDim.x);
  A* mine = shared + thread / 32 * kWarp + thread % 32;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    mine[k * kStride] = first[k];
    mine[(N + k) * kStride] = second[k];
  }
  __syncthreads();
  constexpr int kAtOnce = N % 4 == 0 && std::is_same_v<A, float> ? 4 : 1;  // channels
  const int64_t base = int64_t{blockIdx.y} * columns * N;
  for (int i = thread * kAtOnce; i < 2 * columns * N; i += threads * kAtOnce) {
    const int half = i / (columns * N), channel = i % (columns * N);
    if (base + channel >= sums.channels) continue;
    const A* from = shared + (half * N + channel % N) * kStride;
    A sum[kAtOnce] = {};
    for (int t = channel / N; t < threads; t += columns) {
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) sum[k] += from[t / 32 * kWarp + t % 32 + k * kStride];
    }
    if constexpr (kAtOnce == 4)
      sums.add(half * sums.channels + base + channel, sum);
    else
      sums.add(half * sums.channels + base + channel, sum[0]);
  }
}

// Mean and variance of each channel: of the batch from its sums, else the running ones, else those that are given.
template <class T>
struct Statistics {
  using A = acc_t<T>;
  PairSums<A> sums;               // none in evaluation
  const T* first;                 // the row that deviations were taken from; null: they are from 0
  double share, unbiased;         // 1 / n and n / (n - 1)
  double eps, momentum;           // of the running statistics
  A *running_mean, *running_var;  // may be null in training
  int64_t* batches;               // may be null
  A *mean, *invstd;               // [c], for backward; given where neither sums nor running values are

  __device__ __forceinline__ A inverse(A var) const { return A(1) / ::sqrt(var + static_cast<A>(eps)); }
  __device__ __forceinline__ void of_batch(A from, double sum, double squares, A& m, A& var) const {
    const double s = sum * share, square = squares * share - s * s;
    m = static_cast<A>(static_cast<double>(from) + s);
    var = static_cast<A>(square < 0 ? 0.0 : square);  // a NaN passes
  }
  __device__ __forceinline__ void at(int64_t c, A& m, A& var) const {
    if (sums.at)
      of_batch(first ? load_as(first[c]) : A(0), sums.first(c), sums.second(c), m, var);
    else
      m = running_mean[c], var = running_var[c];
  }
  template <int N>
  __device__ __forceinline__ void of_batch(int64_t c, A (&m)[N], A (&var)[N]) const {
    A from[N] = {}, sum[N], squares[N];
    if (first) load_pack<T, N>(first + c, from);
    load_channels<N>(sums.at + c, sum);
    load_channels<N>(sums.at + sums.channels + c, squares);
#pragma unroll
    for (int k = 0; k < N; ++k)
      of_batch(from[k], static_cast<double>(sum[k]), static_cast<double>(squares[k]), m[k], var[k]);
  }
  // Means and 1 / sqrt(var + eps) of N channels.
  template <int N>
  __device__ __forceinline__ void load(int64_t c, A (&m)[N], A (&inv)[N]) const {
    if (sums.at) {
      of_batch(c, m, inv);
    } else if (running_mean) {
#pragma unroll
      for (int k = 0; k < N; ++k) at(c + k, m[k], inv[k]);
    } else {
      load_channels<N>(mean + c, m);
      return load_channels<N>(invstd + c, inv);
    }
#pragma unroll
    for (int k = 0; k < N; ++k) inv[k] = inverse(inv[k]);
  }

  // The blocks of the last row, a thread a channel of theirs: what backward needs, and the running statistics, which
  // stay unless all channels are finite; each block looks at all.
  template <int N>
  __device__ void write(int64_t channels) const {
    const int thread = flat_thread(), threads = flat_threads();
    const int64_t block = int64_t{blockIdx.y} * threads + thread, blocks = int64_t{gridDim.y} * threads;
    if (batches && block == 0) ++*batches;
    A m, var;
    int finite = 1;
    if (sums.at && running_mean) {
#pragma unroll 1
      for (int64_t c = int64_t{thread} * N; c < channels; c += int64_t{threads} * N) {
        A means[N], vars[N];
        of_batch(c, means, vars);
#pragma unroll
        for (int k = 0; k < N; ++k) finite &= isfinite(means[k]) && isfinite(vars[k] * static_cast<A>(unbiased));
      }
    }
    finite = __syncthreads_and(finite);
    const A old = static_cast<A>(1 - momentum), newest = static_cast<A>(momentum);
    for (int64_t c = block; c < channels; c += blocks) {
      at(c, m, var);
      mean[c] = m;
      invstd[c] = inverse(var);
      if (!sums.at || !running_mean || !finite) continue;
      running_mean[c] = old * running_mean[c] + newest * m;
      running_var[c] = old * running_var[c] + newest * var * static_cast<A>(unbiased);
    }
  }
};

// Without sums and a first row.
template <class T>
Statistics<T> statistics_of(const BatchNormOptions& o, int64_t rows, const RunningStats& running, const Tensor& mean,
                            const Tensor& invstd) {
  using A = acc_t<T>;
  const double n = static_cast<double>(rows);
  return {{},
          nullptr,
          1 / n,
          n / (n - 1),
          o.eps,
          o.momentum,
          running.mean ? running.mean.data<A>() : nullptr,
          running.var ? running.var.data<A>() : nullptr,
          o.training && running.num_batches_tracked ? running.num_batches_tracked.data<int64_t>() : nullptr,
          mean.data<A>(),
          invstd.data<A>()};
}

}  // namespace ht::bn
