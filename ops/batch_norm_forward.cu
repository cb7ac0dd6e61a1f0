// Batch norm forward on CUDA: one pass for the sums, one that normalises, with ReLU and a 2x2 max pool in it where
// asked.
#include "ops/batch_norm.cuh"

namespace ht {

namespace {
using namespace bn;

constexpr int kMomentBlocks = 2, kNormaliseBlocks = 4;  // an SM

// The pairs are sum (x - K) and sum (x - K)^2 with K the first row, which keeps a mean far larger than the spread
// exact.
template <class T, int N>
__global__ void __launch_bounds__(kMostThreads, kMomentBlocks)
    moments_kernel(Geometry g, const T* x, PairSums<acc_t<T>> sums) {
  using A = acc_t<T>;
  constexpr int kRows = 4;  // at once
  let_next_start();
  const int64_t c = first_channel<N>(), step = int64_t{gridDim.x} * blockDim.y;
  A shift[N], sum[N] = {}, squares[N] = {};
  wait_for_previous();
  if (c < g.channels) {
    load_pack<T, N>(x + c, shift);
    for_rows<kRows>(int64_t{blockIdx.x} * blockDim.y + threadIdx.y, step, g.rows, [&]<int kCount>(int64_t r) {
      Pack<T, N> v[kCount];
      load_rows(x + r * g.channels + c, step * g.channels, v);
#pragma unroll
      for (int u = 0; u < kCount; ++u)
#pragma unroll
        for (int k = 0; k < N; ++k) {
          const A d = load_as(v[u].v[k]) - shift[k];
          sum[k] += d;
          squares[k] += d * d;
        }
    });
  }
  add_pairs<N, A>(sum, squares, sums);
  sums.finish();
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
  __device__ __noinline__ void write(int64_t channels) const {  // apart, for the others' registers
    const int thread = flat_thread(), threads = flat_threads();
    const int64_t block = int64_t{blockIdx.y} * threads + thread, blocks = int64_t{gridDim.y} * threads;
    if (batches && block == 0) ++*batches;
    A m, var;
    int finite = 1;
    if (sums.at && running_mean) {
#pragma unroll 2
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

template <class T, int N, bool kRelu>
__device__ __forceinline__ void normalise_rows(const Geometry& g, const Channels<T, N>& channels, const T* x, T* y,
                                               int64_t c, int64_t blocks) {
  constexpr int kRows = 4;  // at once
  const int64_t step = blocks * blockDim.y;
  for_rows<kRows>(int64_t{blockIdx.x} * blockDim.y + threadIdx.y, step, g.rows, [&]<int kCount>(int64_t r) {
    Pack<T, N> v[kCount];
    load_rows(x + r * g.channels + c, step * g.channels, v);
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
#pragma unroll
      for (int k = 0; k < N; ++k) v[u].v[k] = store_as<T>(channels.template value<kRelu>(load_as(v[u].v[k]), k));
      set_pack(y + (r + u * step) * g.channels + c, v[u]);
    }
  });
}

template <class T, int N>
__device__ __forceinline__ void normalise_windows(const Geometry& g, const Channels<T, N>& channels, const T* x, T* y,
                                                  int64_t c, int64_t blocks) {
  using A = acc_t<T>;
  for (int64_t r = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; r < g.rows; r += blocks * blockDim.y) {
    Window<T, N> w;
    w.load(g, x, r, c);
    if (!w.whole) continue;
    Pack<T, N> best;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      A value;
      w.winner(k, channels.slope[k], value);
      best.v[k] = store_as<T>(channels.template value<true>(value, k));
    }
    set_pack(y + w.out, best);
  }
}

// The blocks of the last row write the statistics, the others normalise.
template <class T, int N, bool kRelu, bool kPool>
__global__ void __launch_bounds__(kThreads, kNormaliseBlocks)
    normalise_kernel(Geometry g, const T* x, Statistics<T> statistics, const acc_t<T>* gamma, const acc_t<T>* beta,
                     T* y) {
  const int64_t c = first_channel<N>(), blocks = int64_t{gridDim.x} - 1;
  const bool works = blockIdx.x < blocks && c < g.channels;
  let_next_start();
  wait_for_previous();
  Channels<T, N> channels;
  if (works) {
    statistics.load(c, channels.mean, channels.slope);
    channels.load_affine(gamma, beta, c);
  } else if (blockIdx.x == blocks && (statistics.sums.at || statistics.running_mean)) {
    statistics.template write<N>(g.channels);
  }
  const bool last = statistics.sums.is_last_reader();
  if (works) {
    if constexpr (kPool)
      normalise_windows<T, N>(g, channels, x, y, c, blocks);
    else
      normalise_rows<T, N, kRelu>(g, channels, x, y, c, blocks);
  }
  if (last) statistics.sums.clear();
}

template <class T, int N>
void normalise(const CudaContext& cuda, const Geometry& g, const Tensor& x, const Statistics<T>& statistics,
               const Tensor& gamma, const Tensor& beta, const Tensor& y, BatchNormTail tail) {
  using A = acc_t<T>;
  const auto run = [&]<bool kRelu, bool kPool>() {
    Launch launch = launch_for(cuda, g.rows, g.channels / N, kNormaliseBlocks);
    ++launch.grid.x;
    launch_early(cuda, normalise_kernel<T, N, kRelu, kPool>, launch.grid, launch.block, g, x.data<T>(), statistics,
                 gamma.data<A>(), beta.data<A>(), y.data<T>());
  };
  if (tail.pool)
    run.template operator()<true, true>();
  else
    tail.relu ? run.template operator()<true, false>() : run.template operator()<false, false>();
}

template <class T, int N>
void forward(Context& ctx, const BatchNormOptions& o, const Tensor& x, const Tensor& gamma, const Tensor& beta,
             const RunningStats& running, const Tensor& y, const Tensor& mean, const Tensor& invstd, BatchNormTail tail,
             const Tensor& sums) {
  using A = acc_t<T>;
  CudaContext& cuda = ctx.cuda();
  const Geometry all = geometry_of(x, {}), g = geometry_of(x, tail);
  const double n = static_cast<double>(all.rows);
  Statistics<T> statistics{
      {},
      x.data<T>(),
      1 / n,
      n / (n - 1),
      o.eps,
      o.momentum,
      running.mean ? running.mean.data<A>() : nullptr,
      running.var ? running.var.data<A>() : nullptr,
      o.training && running.num_batches_tracked ? running.num_batches_tracked.data<int64_t>() : nullptr,
      mean.data<A>(),
      invstd.data<A>()};
  Tensor partial;
  if (o.training && sums.defined()) {
    statistics.sums = {sums.data<A>(), all.channels, 1, nullptr};
    statistics.first = nullptr;
  } else if (o.training) {
    const Launch launch = launch_for(cuda, all.rows, all.channels / N, kMomentBlocks, kMostThreads);
    statistics.sums = make_pair_sums<A>(ctx, launch, all.channels, partial);
    launch_early(cuda, moments_kernel<T, N>, launch.grid, launch.block, all, x.data<T>(), statistics.sums);
  }
  normalise<T, N>(cuda, g, x, statistics, gamma, beta, y, tail);
}
}  // namespace

void batch_norm_forward_cuda(Context& ctx, const BatchNormOptions& options, const Tensor& x, const Tensor& gamma,
                             const Tensor& beta, const RunningStats& running, const Tensor& y, const Tensor& mean,
                             const Tensor& invstd, BatchNormTail tail, const Tensor& sums) {
  if (x.numel() == 0) return mean.fill_(0), invstd.fill_(1 / std::sqrt(options.eps));
  dispatch_packs({x, y, gamma, beta}, x.shape().back(), [&]<class T, int N>() {
    forward<T, N>(ctx, options, x, gamma, beta, running, y, mean, invstd, tail, sums);
  });
}

void batch_norm_normalise_cuda(Context& ctx, const Tensor& x, const Tensor& gamma, const Tensor& beta,
                               const Tensor& mean, const Tensor& invstd, const Tensor& y, BatchNormTail tail) {
  if (x.numel() == 0) return;
  dispatch_packs({x, y, gamma, beta}, x.shape().back(), [&]<class T, int N>() {
    using A = acc_t<T>;
    Statistics<T> statistics{};
    statistics.mean = mean.data<A>(), statistics.invstd = invstd.data<A>();
    normalise<T, N>(ctx.cuda(), geometry_of(x, tail), x, statistics, gamma, beta, y, tail);
  });
}

void batch_norm_sums_cuda(Context& ctx, const Tensor& x, const Tensor& sums) {
  dispatch_packs({x}, x.shape().back(), [&]<class T, int N>() {
    using A = acc_t<T>;
    const Geometry g = geometry_of(x, {});
    const Launch launch = launch_for(ctx.cuda(), g.rows, g.channels / N, kMomentBlocks, kMostThreads);
    launch_early(ctx.cuda(), moments_kernel<T, N>, launch.grid, launch.block, g, x.data<T>(),
                 PairSums<A>{sums.data<A>(), g.channels, 0, nullptr});
  });
}

}  // namespace ht
