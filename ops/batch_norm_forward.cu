// Batch norm forward on CUDA: one pass for the sums, one that normalises, with ReLU and a 2x2 max pool in it where
// asked.
#include "ops/batch_norm.cuh"

namespace ht {

namespace {
using namespace bn;

// What the last block of a pass writes from the sums: [c] mean and invstd, and the running statistics.
template <class A>
struct Statistics {
  double eps, momentum, share, unbiased;          // 1 / n and n / (n - 1)
  A *mean, *invstd, *running_mean, *running_var;  // the running ones may be null
  int64_t* batches;                               // may be null

  // `first` are the values that deviations were taken from. The running statistics stay unless all channels are finite.
  template <class T>
  __device__ void write(const Geometry& g, const T* first, const PairSums<A>& sums) const {
    const int thread = flat_thread(), threads = flat_threads();
    if (batches && thread == 0) ++*batches;
    int finite = 1;
#pragma unroll 4
    for (int64_t c = thread; c < g.channels; c += threads) {
      const double s = sums.first(c) * share, square = sums.second(c) * share - s * s;
      const A m = static_cast<A>(static_cast<double>(load_as(first[c])) + s);
      const A var = static_cast<A>(square < 0 ? 0.0 : square);  // a NaN passes
      mean[c] = m;
      invstd[c] = A(1) / ::sqrt(var + static_cast<A>(eps));
      sums.keep(c, var);
      finite &= isfinite(m) && isfinite(var * static_cast<A>(unbiased));
    }
    finite = __syncthreads_and(finite);
    const A old = static_cast<A>(1 - momentum), newest = static_cast<A>(momentum);
#pragma unroll 4
    for (int64_t c = thread; c < g.channels; c += threads) {
      const A var = sums.kept(c);
      sums.clear(c);
      if (!finite || !running_mean) continue;
      running_mean[c] = old * running_mean[c] + newest * mean[c];
      running_var[c] = old * running_var[c] + newest * var * static_cast<A>(unbiased);
    }
  }
};

// The pairs are sum (x - K) and sum (x - K)^2 with K the first row, which keeps a mean far larger than the spread
// exact.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    moments_kernel(Geometry g, const T* x, PairSums<acc_t<T>> sums, Statistics<acc_t<T>> statistics) {
  using A = acc_t<T>;
  const int64_t c = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * N;
  A shift[N], v[N], sum[N] = {}, squares[N] = {};
  if (c < g.channels) {
    load_pack<T, N>(x + c, shift);
    for (int64_t r = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; r < g.rows; r += int64_t{gridDim.x} * blockDim.y) {
      load_pack<T, N>(x + r * g.channels + c, v);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const A d = v[k] - shift[k];
        sum[k] += d;
        squares[k] += d * d;
      }
    }
  }
  add_pairs<N, A>(sum, squares, c, sums);
  if (sums.complete(flat_thread(), flat_threads())) statistics.write(g, x, sums);
}

template <class A>
__global__ void evaluation_kernel(const A* running_mean, const A* running_var, double eps, A* mean, A* invstd,
                                  int64_t channels) {
  HT_GRID_STRIDE(c, channels) {
    mean[c] = running_mean[c];
    invstd[c] = static_cast<A>(1 / ::sqrt(static_cast<double>(running_var[c]) + eps));
  }
}

template <class T, int N, bool kRelu>
__global__ void __launch_bounds__(kThreads)
    normalise_kernel(Geometry g, const T* x, const acc_t<T>* mean, const acc_t<T>* invstd, const acc_t<T>* gamma,
                     const acc_t<T>* beta, T* y) {
  using A = acc_t<T>;
  const int64_t c = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * N;
  if (c >= g.channels) return;
  Channels<T, N> channels;
  channels.load(mean, invstd, gamma, beta, c);
  for (int64_t r = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; r < g.rows; r += int64_t{gridDim.x} * blockDim.y) {
    A v[N];
    load_pack<T, N>(x + r * g.channels + c, v);
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = channels.template value<kRelu>(v[k], k);
    store_pack<T, N>(v, y + r * g.channels + c);
  }
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    normalise_pool_kernel(Geometry g, const T* x, const acc_t<T>* mean, const acc_t<T>* invstd, const acc_t<T>* gamma,
                          const acc_t<T>* beta, T* y) {
  using A = acc_t<T>;
  const int64_t c = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * N;
  if (c >= g.channels) return;
  Channels<T, N> channels;
  channels.load(mean, invstd, gamma, beta, c);
  const int64_t oh = g.h / 2, ow = g.w / 2;
  for (int64_t r = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; r < g.rows; r += int64_t{gridDim.x} * blockDim.y) {
    const int64_t ox = r % g.tw, oy = r / g.tw % g.th, n = r / g.tw / g.th;
    if (oy >= oh || ox >= ow) continue;
    A best[N], v[N];
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      int64_t at;
      pixel(g, n, oy, ox, p, at);
      load_pack<T, N>(x + at + c, v);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const A value = channels.template value<true>(v[k], k);
        if (p == 0 || beats(value, best[k])) best[k] = value;
      }
    }
    store_pack<T, N>(best, y + ((n * oh + oy) * ow + ox) * g.channels + c);
  }
}

template <class T, int N>
void forward(Context& ctx, const BatchNormOptions& o, const Tensor& x, const Tensor& gamma, const Tensor& beta,
             const RunningStats& running, const Tensor& y, const Tensor& mean, const Tensor& invstd,
             BatchNormTail tail) {
  using A = acc_t<T>;
  const CudaStream stream = ctx.cuda().stream();
  const Geometry all = geometry_of(x, {}), g = geometry_of(x, tail);
  A* rm = running.mean ? running.mean.data<A>() : nullptr;
  A* rv = running.var ? running.var.data<A>() : nullptr;
  int64_t* batches = running.num_batches_tracked ? running.num_batches_tracked.data<int64_t>() : nullptr;
  if (o.training) {
    const Launch launch = launch_for(ctx.cuda(), all.rows, all.channels / N);
    const double n = static_cast<double>(all.rows);
    const Statistics<A> statistics{o.eps, o.momentum, 1 / n,  n / (n - 1), mean.data<A>(), invstd.data<A>(),
                                   rm,    rv,         batches};
    with_pair_sums<A>(ctx, launch, N, all.channels, [&](size_t shared, const PairSums<A>& sums) {
      moments_kernel<T, N><<<launch.grid, launch.block, shared, stream>>>(all, x.data<T>(), sums, statistics);
      HT_LAUNCHED("batch_norm moments");
    });
  } else {
    evaluation_kernel<A><<<grid_for(ctx.cuda(), all.channels), kBlock, 0, stream>>>(rm, rv, o.eps, mean.data<A>(),
                                                                                    invstd.data<A>(), all.channels);
    HT_LAUNCHED("batch_norm evaluation");
  }
  const Launch launch = launch_for(ctx.cuda(), g.rows, g.channels / N);
  const dim3 grid(launch.grid.x * 2, launch.grid.y);
  const auto run = [&](auto kernel) {
    kernel<<<grid, launch.block, 0, stream>>>(g, x.data<T>(), mean.data<A>(), invstd.data<A>(), gamma.data<A>(),
                                              beta.data<A>(), y.data<T>());
    HT_LAUNCHED("batch_norm forward");
  };
  if (tail.pool) {
    run(normalise_pool_kernel<T, N>);
  } else {
    tail.relu ? run(normalise_kernel<T, N, true>) : run(normalise_kernel<T, N, false>);
  }
}
}  // namespace

void batch_norm_forward_cuda(Context& ctx, const BatchNormOptions& options, const Tensor& x, const Tensor& gamma,
                             const Tensor& beta, const RunningStats& running, const Tensor& y, const Tensor& mean,
                             const Tensor& invstd, BatchNormTail tail) {
  if (x.numel() == 0) return mean.fill_(0), invstd.fill_(1 / std::sqrt(options.eps));
  dispatch_packs(x, y, x.shape().back(), [&]<class T, int N>() {
    forward<T, N>(ctx, options, x, gamma, beta, running, y, mean, invstd, tail);
  });
}

}  // namespace ht
