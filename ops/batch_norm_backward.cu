// Batch norm backward on CUDA: one pass for the two sums, one that writes dx. Behind a ReLU or a pool the mask and the
// arg-max are found again from x.
#include "ops/batch_norm.cuh"

namespace ht {

namespace {
using namespace bn;

constexpr int kSumBlocks = 3, kGradientBlocks = 3, kPoolBlocks = 2;  // an SM

// What the second pass makes of S = sum d and P = sum d (x - mean), d being dy behind the tail: dbeta = S, dgamma = P
// invstd, and what each value of d is moved by, S / n and P invstd^2 / n.
template <class A>
struct GradientTerms {
  PairSums<A> sums;  // none where nothing needs them
  double share;      // 1 / n; 0 in evaluation, where nothing is moved
  const A* invstd;
  A *dgamma, *dbeta;  // may be null

  template <int N>
  __device__ __forceinline__ void load(int64_t c, const A (&inv)[N], A (&offset)[N], A (&pull)[N]) const {
    A s[N] = {}, p[N] = {};
    if (sums.at && share != 0) {
      load_channels<N>(sums.at + c, s);
      load_channels<N>(sums.at + sums.channels + c, p);
    }
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const double i = static_cast<double>(inv[k]);
      offset[k] = static_cast<A>(static_cast<double>(s[k]) * share);
      pull[k] = static_cast<A>(static_cast<double>(p[k]) * i * i * share);
    }
  }
  // The blocks of the last row.
  __device__ void write(int64_t channels) const {
    const int64_t blocks = int64_t{gridDim.y} * flat_threads();
    for (int64_t c = int64_t{blockIdx.y} * flat_threads() + flat_thread(); c < channels; c += blocks) {
      if (dbeta) dbeta[c] = sums.at ? sums.at[c] : A(0);
      if (dgamma) dgamma[c] = static_cast<A>(sums.at ? sums.second(c) * static_cast<double>(invstd[c]) : 0.0);
    }
  }
};

// The pairs are sum d and sum d (x - mean).
template <class T, int N, bool kRelu, bool kPool>
__global__ void __launch_bounds__(kThreads, kSumBlocks)
    gradient_sums_kernel(Geometry g, const T* x, const T* dy, const acc_t<T>* mean, const acc_t<T>* invstd,
                         const acc_t<T>* gamma, const acc_t<T>* beta, PairSums<acc_t<T>> sums) {
  using A = acc_t<T>;
  let_next_start();
  const int64_t c = first_channel<N>(), step = int64_t{gridDim.x} * blockDim.y;
  GradientSums<T, N> gradient;
  wait_for_previous();
  if (c < g.channels) {
    Channels<T, N> channels;
    load_channels<N>(mean + c, channels.mean);
    load_channels<N>(invstd + c, channels.slope);
    channels.load_affine(gamma, beta, c);
    const int64_t start = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
    if constexpr (kPool) {
      for (int64_t r = start; r < g.rows; r += step) {
        Window<T, N> w;
        Pack<T, N> from{};
        w.load(g, x, r, c);
        if (w.whole) from = pack_at<T, N>(dy + w.out);
        gradient.add(channels, w, from);
      }
    } else {
      constexpr int kRows = 2;  // at once
      for_rows<kRows>(start, step, g.rows, [&]<int kCount>(int64_t r) {
        Pack<T, N> v[kCount], d[kCount];
        load_rows(x + r * g.channels + c, step * g.channels, v);
        load_rows(dy + r * g.channels + c, step * g.channels, d);
#pragma unroll
        for (int u = 0; u < kCount; ++u) gradient.template add<kRelu>(channels, v[u], d[u]);
      });
    }
  }
  add_pairs<N, A>(gradient.sum, gradient.product, sums);
  sums.finish();
}

// From the last row to the first, as the windows: what the sums' pass read last is still in the L2 cache, and what is
// written last is what the convolution reads first.
template <class T, int N, bool kRelu>
__device__ __forceinline__ void input_gradient_rows(const Geometry& g, const InputGradient<T, N>& gradient, const T* x,
                                                    const T* dy, T* dx, int64_t c, int64_t blocks) {
  constexpr int kRows = 2;  // at once
  const int64_t step = blocks * blockDim.y;
  for_rows<kRows>(int64_t{blockIdx.x} * blockDim.y + threadIdx.y, step, g.rows, [&]<int kCount>(int64_t r) {
    const int64_t at = (g.rows - 1 - r) * g.channels + c, back = -step * g.channels;
    Pack<T, N> v[kCount], d[kCount];
    load_rows(x + at, back, v);
    load_rows(dy + at, back, d);
#pragma unroll
    for (int u = 0; u < kCount; ++u) set_pack(dx + at + u * back, gradient.template of<kRelu>(v[u], d[u]));
  });
}

template <class T, int N>
__device__ __forceinline__ void input_gradient_windows(const Geometry& g, const InputGradient<T, N>& gradient,
                                                       const T* x, const T* dy, T* dx, int64_t c, int64_t blocks) {
  for (int64_t r = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; r < g.rows; r += blocks * blockDim.y) {
    Window<T, N> w;
    Pack<T, N> from{};
    w.load(g, x, g.rows - 1 - r, c);
    if (w.whole) from = pack_at<T, N>(dy + w.out);
    gradient.of(w, from);
#pragma unroll
    for (int p = 0; p < 4; ++p)
      if (w.inside[p]) set_pack(dx + w.at[p], w.x[p]);
  }
}

// The blocks of the last row write dgamma and dbeta, the others dx.
template <class T, int N, bool kRelu, bool kPool>
__global__ void __launch_bounds__(kThreads, kPool ? kPoolBlocks : kGradientBlocks)
    input_gradient_kernel(Geometry g, const T* x, const T* dy, const acc_t<T>* mean, const acc_t<T>* gamma,
                          const acc_t<T>* beta, GradientTerms<acc_t<T>> terms, T* dx) {
  const int64_t c = first_channel<N>(), blocks = int64_t{gridDim.x} - 1;
  const bool works = blockIdx.x < blocks && c < g.channels;
  InputGradient<T, N> gradient;
  let_next_start();
  wait_for_previous();
  if (works) {
    load_channels<N>(mean + c, gradient.channels.mean);
    load_channels<N>(terms.invstd + c, gradient.channels.slope);
    terms.load(c, gradient.channels.slope, gradient.shift, gradient.tilt);
    gradient.load_affine(gamma, beta, c);
  } else if (blockIdx.x == blocks) {
    terms.write(g.channels);
  }
  __shared__ unsigned arrival;
  terms.sums.arrive(arrival);
  if (works) {
    if constexpr (kPool)
      input_gradient_windows<T, N>(g, gradient, x, dy, dx, c, blocks);
    else
      input_gradient_rows<T, N, kRelu>(g, gradient, x, dy, dx, c, blocks);
  }
  terms.sums.leave(arrival);
}

template <class T, int N, bool kRelu, bool kPool>
void backward(Context& ctx, bool training, const Tensor& x, const Tensor& gamma, const Tensor& beta, const Tensor& mean,
              const Tensor& invstd, const Tensor& dy, const Tensor& dx, const Tensor& dgamma, const Tensor& dbeta) {
  using A = acc_t<T>;
  CudaContext& cuda = ctx.cuda();
  const Geometry g = geometry_of(x, {kRelu, kPool});
  const A *m = mean.data<A>(), *ga = gamma.data<A>(), *be = kRelu ? beta.data<A>() : nullptr;
  GradientTerms<A> terms{{},
                         training ? 1 / static_cast<double>(x.numel() / g.channels) : 0,
                         invstd.data<A>(),
                         dgamma ? dgamma.data<A>() : nullptr,
                         dbeta ? dbeta.data<A>() : nullptr};
  Tensor partial;
  if ((dx && training) || dgamma || dbeta) {
    const Launch launch = launch_for(cuda, g.rows, g.channels / N, kSumBlocks);
    terms.sums = make_pair_sums<A>(ctx, launch, g.channels, partial);
    launch_early(cuda, gradient_sums_kernel<T, N, kRelu, kPool>, launch.grid, launch.block, g, x.data<T>(),
                 dy.data<T>(), m, invstd.data<A>(), ga, be, terms.sums);
  }
  Launch launch = launch_for(cuda, g.rows, g.channels / N, kPool ? kPoolBlocks : kGradientBlocks);
  launch.grid.x = dx ? launch.grid.x + 1 : 1;
  launch_early(cuda, input_gradient_kernel<T, N, kRelu, kPool>, launch.grid, launch.block, g, x.data<T>(), dy.data<T>(),
               m, ga, be, terms, dx ? dx.data<T>() : nullptr);
}
}  // namespace

void batch_norm_backward_cuda(Context& ctx, bool training, const Tensor& x, const Tensor& gamma, const Tensor& beta,
                              const Tensor& mean, const Tensor& invstd, const Tensor& dy, const Tensor& dx,
                              const Tensor& dgamma, const Tensor& dbeta, BatchNormTail tail) {
  if (x.numel() == 0) {
    if (dgamma) dgamma.zero_();
    if (dbeta) dbeta.zero_();
    return;
  }
  if (training && dx &&
      batch_norm_resident_backward_cuda(ctx, x, gamma, beta, mean, invstd, dy, dx, dgamma, dbeta, tail))
    return;
  dispatch_packs({x, dy, dx, gamma, beta}, x.shape().back(), [&]<class T, int N>() {
    const auto run = [&]<bool kRelu, bool kPool>() {
      backward<T, N, kRelu, kPool>(ctx, training, x, gamma, beta, mean, invstd, dy, dx, dgamma, dbeta);
    };
    if (tail.pool) {
      run.template operator()<true, true>();
    } else {
      tail.relu ? run.template operator()<true, false>() : run.template operator()<false, false>();
    }
  });
}

}  // namespace ht
