// Batch norm forward on CUDA: one pass for the sums, one that normalises, with ReLU and a 2x2 max pool in it where
// asked.
#include "ops/batch_norm.cuh"

namespace ht {

namespace {
using namespace bn;

constexpr int kMomentBlocks = 2, kNormaliseBlocks = 4;  // an SM

template <class T, int N>
__global__ void __launch_bounds__(kMostThreads, kMomentBlocks)
    moments_kernel(Geometry g, const T* x, PairSums<acc_t<T>> sums) {
  using A = acc_t<T>;
  constexpr int kRows = 4;  // at once
  let_next_start();
  const int64_t c = first_channel<N>(), step = int64_t{gridDim.x} * blockDim.y;
  Moments<T, N> moments;
  wait_for_previous();
  if (c < g.channels) {
    load_pack<T, N>(x + c, moments.shift);
    for_rows<kRows>(int64_t{blockIdx.x} * blockDim.y + threadIdx.y, step, g.rows, [&]<int kCount>(int64_t r) {
      Pack<T, N> v[kCount];
      load_rows(x + r * g.channels + c, step * g.channels, v);
#pragma unroll
      for (int u = 0; u < kCount; ++u) moments.add(v[u]);
    });
  }
  add_pairs<N, A>(moments.sum, moments.squares, sums);
  sums.finish();
}

// From the last row to the first, as the windows: what the convolution wrote last is still in the L2 cache, and what is
// written last is what the next one reads first.
template <class T, int N, bool kRelu>
__device__ __forceinline__ void normalise_rows(const Geometry& g, const Channels<T, N>& channels, const T* x, T* y,
                                               int64_t c, int64_t blocks) {
  constexpr int kRows = 4;  // at once
  const int64_t step = blocks * blockDim.y;
  for_rows<kRows>(int64_t{blockIdx.x} * blockDim.y + threadIdx.y, step, g.rows, [&]<int kCount>(int64_t r) {
    const int64_t at = (g.rows - 1 - r) * g.channels + c, back = -step * g.channels;
    Pack<T, N> v[kCount];
    load_rows(x + at, back, v);
#pragma unroll
    for (int u = 0; u < kCount; ++u) set_pack(y + at + u * back, channels.template normalised<kRelu>(v[u]));
  });
}

template <class T, int N>
__device__ __forceinline__ void normalise_windows(const Geometry& g, const Channels<T, N>& channels, const T* x, T* y,
                                                  int64_t c, int64_t blocks) {
  for (int64_t r = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; r < g.rows; r += blocks * blockDim.y) {
    Window<T, N> w;
    w.load(g, x, g.rows - 1 - r, c);
    if (w.whole) set_pack(y + w.out, w.pooled(channels));
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
  __shared__ unsigned arrival;
  statistics.sums.arrive(arrival);
  if (works) {
    if constexpr (kPool)
      normalise_windows<T, N>(g, channels, x, y, c, blocks);
    else
      normalise_rows<T, N, kRelu>(g, channels, x, y, c, blocks);
  }
  statistics.sums.leave(arrival);
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
  Statistics<T> statistics = statistics_of<T>(o, all.rows, running, mean, invstd);
  statistics.first = x.data<T>();
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
  if (options.training && !sums &&
      batch_norm_resident_forward_cuda(ctx, options, x, gamma, beta, running, y, mean, invstd, tail))
    return;
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
