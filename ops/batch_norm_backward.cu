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
  A *dgamma, *dbeta;    // may be null
  float* coefficients;  // of a NormGradient; null: none

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
  __device__ void write(int64_t channels, const A* mean, const A* gamma, const A* beta) const {
    const int64_t blocks = int64_t{gridDim.y} * flat_threads();
    for (int64_t c = int64_t{blockIdx.y} * flat_threads() + flat_thread(); c < channels; c += blocks) {
      const double s = sums.at ? sums.first(c) : 0, p = sums.at ? sums.second(c) : 0,
                   inv = static_cast<double>(invstd[c]);
      if (dbeta) dbeta[c] = static_cast<A>(s);
      if (dgamma) dgamma[c] = static_cast<A>(p * inv);
      if (!coefficients) continue;
      const float slope = static_cast<float>(gamma[c] * invstd[c]);
      const float values[] = {static_cast<float>(mean[c]), slope, static_cast<float>(beta[c]),
                              -slope * static_cast<float>(p * inv * inv * share),
                              -slope * static_cast<float>(s * share)};
      for (int k = 0; k < 5; ++k) coefficients[k * channels + c] = values[k];
    }
  }
};

// x and dy of a batch of rows; d of a pixel is its dy where it passes the ReLU.
template <class T, int N, bool kRelu>
struct Rows {
  using A = acc_t<T>;
  static constexpr int kRows = 2;  // at once
  Batch<kRows> batch;
  Pack<T, N> v[kRows], d[kRows];

  __device__ __forceinline__ Rows(const Geometry& g, int64_t blocks) : batch(first_batch<kRows>(blocks, g.rows)) {}
  __device__ __forceinline__ bool load(const Geometry& g, const T* x, const T* dy, int64_t c) {
    if (!batch.has()) return false;
    batch.load(x + c, g.channels, v);
    batch.load(dy + c, g.channels, d);
    return true;
  }
  // Calls f(u, k, x, d) for each of them.
  template <class F>
  __device__ __forceinline__ void each(const Channels<T, N>& channels, F&& f) const {
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      if (!batch.has(u)) break;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const A value = load_as(v[u].v[k]), grad = load_as(d[u].v[k]);
        f(u, k, value, kRelu && !(channels.template value<false>(value, k) > A(0)) ? A(0) : grad);
      }
    }
  }
};

// x of a window and dy of its output, which is that of the winner where it passes the ReLU.
template <class T, int N>
struct Windows {
  using A = acc_t<T>;
  Batch<1> batch;
  Window<T, N> w;
  Pack<T, N> from;

  __device__ __forceinline__ Windows(const Geometry& g, int64_t blocks) : batch(first_batch<1>(blocks, g.rows)) {}
  __device__ __forceinline__ bool load(const Geometry& g, const T* x, const T* dy, int64_t c) {
    if (!batch.has()) return false;
    w.load(g, x, batch.r, c);
    from = pack_at<T, N>(w.whole ? dy + w.out : x);  // without a branch; only a whole window's is used
    return true;
  }
  // Calls f(winner, k, its x, d) for each channel.
  template <class F>
  __device__ __forceinline__ void each(const Channels<T, N>& channels, F&& f) const {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      A v;
      const int winner = w.winner(k, channels.slope[k], v);
      const bool passes = w.whole && channels.template value<false>(v, k) > A(0);
      f(winner, k, v, passes ? load_as(from.v[k]) : A(0));
    }
  }
};

template <class T, int N, bool kRelu, bool kPool>
using Pixels = std::conditional_t<kPool, Windows<T, N>, Rows<T, N, kRelu>>;

// The pairs are sum d and sum d (x - mean).
template <class T, int N, bool kRelu, bool kPool>
__global__ void __launch_bounds__(kThreads, kSumBlocks)
    gradient_sums_kernel(Geometry g, const T* x, const T* dy, const acc_t<T>* mean, const acc_t<T>* invstd,
                         const acc_t<T>* gamma, const acc_t<T>* beta, PairSums<acc_t<T>> sums) {
  using A = acc_t<T>;
  let_next_start();
  const int64_t c = first_channel<N>();
  A sum[N] = {}, product[N] = {};
  wait_for_previous();
  if (c < g.channels) {
    Pixels<T, N, kRelu, kPool> pixels(g, gridDim.x);
    bool more = pixels.load(g, x, dy, c);
    Channels<T, N> channels;
    A inv[N];
    load_channels<N>(mean + c, channels.mean);
    load_channels<N>(invstd + c, inv);
    channels.load_affine(gamma, beta, c);
    channels.scale(inv);
    while (more) {
      pixels.each(channels, [&](int, int k, A value, A d) {
        sum[k] += d;
        product[k] += d * (value - channels.mean[k]);
      });
      pixels.batch.advance();
      more = pixels.load(g, x, dy, c);
    }
  }
  add_pairs<N, A>(sum, product, sums);
  sums.finish();
}

// dx = slope (d - offset - (x - mean) pull) = slope d + tilt (x - mean) + shift.
template <class T, int N>
struct InputGradient {
  using A = acc_t<T>;
  Channels<T, N> channels;
  A tilt[N], shift[N];

  // tilt and shift hold pull and offset before.
  __device__ __forceinline__ void scale(const A (&invstd)[N]) {
    channels.scale(invstd);
#pragma unroll
    for (int k = 0; k < N; ++k) tilt[k] *= -channels.slope[k], shift[k] *= -channels.slope[k];
  }
  // What all of x's gradient but that of d is.
  __device__ __forceinline__ A base(A x, int k) const { return (x - channels.mean[k]) * tilt[k] + shift[k]; }

  template <bool kRelu>
  __device__ __forceinline__ void put(const Geometry& g, Rows<T, N, kRelu>& rows, T* dx, int64_t c) const {
    rows.each(channels, [&](int u, int k, A value, A d) {
      rows.v[u].v[k] = store_as<T>(channels.slope[k] * d + base(value, k));
    });
#pragma unroll
    for (int u = 0; u < rows.kRows; ++u)
      if (rows.batch.has(u)) set_pack(dx + rows.batch.row(u) * g.channels + c, rows.v[u]);
  }
  __device__ __forceinline__ void put(const Geometry&, Windows<T, N>& windows, T* dx, int64_t) const {
    Window<T, N>& w = windows.w;
    windows.each(channels, [&](int winner, int k, A, A d) {
#pragma unroll
      for (int p = 0; p < 4; ++p)
        w.x[p].v[k] =
            store_as<T>(base(load_as(w.x[p].v[k]), k) + (winner == p ? channels.slope[k] * d : A(0)));
    });
#pragma unroll
    for (int p = 0; p < 4; ++p)
      if (w.inside[p]) set_pack(dx + w.at[p], w.x[p]);
  }
};

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
  Pixels<T, N, kRelu, kPool> pixels(g, blocks);
  bool more = works && pixels.load(g, x, dy, c);
  if (works) {
    acc_t<T> invstd[N];
    load_channels<N>(mean + c, gradient.channels.mean);
    load_channels<N>(terms.invstd + c, invstd);
    terms.load(c, invstd, gradient.shift, gradient.tilt);
    gradient.channels.load_affine(gamma, beta, c);
    gradient.scale(invstd);
  } else if (blockIdx.x == blocks) {
    terms.write(g.channels, mean, gamma, beta);
  }
  const unsigned arrival = terms.sums.arrive();
  while (more) {
    gradient.put(g, pixels, dx, c);
    pixels.batch.advance();
    more = pixels.load(g, x, dy, c);
  }
  terms.sums.leave(arrival);
}

template <class T, int N, bool kRelu, bool kPool>
void backward(Context& ctx, bool training, const Tensor& x, const Tensor& gamma, const Tensor& beta, const Tensor& mean,
              const Tensor& invstd, const Tensor& dy, const Tensor& dx, const Tensor& dgamma, const Tensor& dbeta,
              const Tensor& coefficients) {
  using A = acc_t<T>;
  CudaContext& cuda = ctx.cuda();
  const Geometry g = geometry_of(x, {kRelu, kPool});
  const A *m = mean.data<A>(), *ga = gamma.data<A>(), *be = kRelu ? beta.data<A>() : nullptr;
  GradientTerms<A> terms{{},
                         training ? 1 / static_cast<double>(x.numel() / g.channels) : 0,
                         invstd.data<A>(),
                         dgamma ? dgamma.data<A>() : nullptr,
                         dbeta ? dbeta.data<A>() : nullptr,
                         coefficients ? coefficients.data<float>() : nullptr};
  Tensor partial;
  if (((dx || coefficients) && training) || dgamma || dbeta) {
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
                              const Tensor& dgamma, const Tensor& dbeta, BatchNormTail tail, NormGradient* left) {
  if (x.numel() == 0) {
    if (dgamma) dgamma.zero_();
    if (dbeta) dbeta.zero_();
    return;
  }
  Tensor coefficients;
  if (left) {
    coefficients = Tensor::empty({5, x.shape().back()}, DType::f32, ctx.device());
    *left = {x, dy, coefficients};
  }
  dispatch_packs({x, dy, dx, gamma, beta}, x.shape().back(), [&]<class T, int N>() {
    const auto run = [&]<bool kRelu, bool kPool>() {
      backward<T, N, kRelu, kPool>(ctx, training, x, gamma, beta, mean, invstd, dy, dx, dgamma, dbeta, coefficients);
    };
    if (tail.pool) {
      run.template operator()<true, true>();
    } else {
      tail.relu ? run.template operator()<true, false>() : run.template operator()<false, false>();
    }
  });
}

}  // namespace ht
