// Batch norm backward on CUDA: one pass for the two sums, one that writes dx. Behind a ReLU or a pool the mask and the
// arg-max are found again from x.
#include "ops/batch_norm.cuh"

namespace ht {

namespace {
using namespace bn;

// d [N] = dy behind the ReLU of a row.
template <class T, int N, bool kRelu>
__device__ __forceinline__ void masked(const Channels<T, N>& channels, const acc_t<T> (&x)[N], acc_t<T> (&d)[N]) {
  if constexpr (kRelu) {
#pragma unroll
    for (int k = 0; k < N; ++k)
      if (!(channels.template value<true>(x[k], k) > acc_t<T>(0))) d[k] = 0;
  }
}

// Loads a window, x [4][N] and d [4][N]: dy at each channel's maximum if it is above 0. inside[p]: the pixel exists.
template <class T, int N>
__device__ __forceinline__ void load_window(const Geometry& g, const Channels<T, N>& channels, const T* x, const T* dy,
                                            int64_t r, int64_t c, acc_t<T> (&v)[4][N], acc_t<T> (&d)[4][N],
                                            int64_t (&at)[4], bool (&inside)[4]) {
  using A = acc_t<T>;
  const int64_t ox = r % g.tw, oy = r / g.tw % g.th, n = r / g.tw / g.th, oh = g.h / 2, ow = g.w / 2;
  const bool whole = oy < oh && ox < ow;
  A from[N] = {}, best[N];
  int winner[N];
  if (whole) load_pack<T, N>(dy + ((n * oh + oy) * ow + ox) * g.channels + c, from);
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    inside[p] = pixel(g, n, oy, ox, p, at[p]);
    if (inside[p]) load_pack<T, N>(x + at[p] + c, v[p]);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (!inside[p]) v[p][k] = 0;
      const A value = channels.template value<true>(v[p][k], k);
      if (p == 0 || beats(value, best[k])) {
        best[k] = value;
        winner[k] = p;
      }
    }
  }
#pragma unroll
  for (int p = 0; p < 4; ++p)
#pragma unroll
    for (int k = 0; k < N; ++k) d[p][k] = whole && winner[k] == p && best[k] > A(0) ? from[k] : A(0);
}

// What the last block of the sums' pass writes from S = sum d and P = sum d (x - mean): dbeta = S, dgamma = P invstd,
// and what each value of d is moved by, S / n and P invstd^2 / n. All [c].
template <class A>
struct GradientTerms {
  double share;  // 1 / n
  const A* invstd;
  A *dgamma, *dbeta;  // may be null
  A *offset, *pull;   // both null in evaluation

  __device__ void write(const PairSums<A>& sums) const {
#pragma unroll 4
    for (int64_t c = flat_thread(); c < sums.channels; c += flat_threads()) {
      const double s = sums.first(c), p = sums.second(c) * static_cast<double>(invstd[c]);
      sums.clear(c);
      if (dbeta) dbeta[c] = static_cast<A>(s);
      if (dgamma) dgamma[c] = static_cast<A>(p);
      if (!offset) continue;
      offset[c] = static_cast<A>(s * share);
      pull[c] = static_cast<A>(p * static_cast<double>(invstd[c]) * share);
    }
  }
};

// The pairs are sum d and sum d (x - mean), d being dy behind the tail.
template <class T, int N, bool kRelu, bool kPool>
__global__ void __launch_bounds__(kThreads)
    gradient_sums_kernel(Geometry g, const T* x, const T* dy, const acc_t<T>* mean, const acc_t<T>* invstd,
                         const acc_t<T>* gamma, const acc_t<T>* beta, PairSums<acc_t<T>> sums,
                         GradientTerms<acc_t<T>> terms) {
  using A = acc_t<T>;
  const int64_t c = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * N;
  A sum[N] = {}, product[N] = {};
  if (c < g.channels) {
    Channels<T, N> channels;
    channels.load(mean, invstd, gamma, beta, c);
    for (int64_t r = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; r < g.rows; r += int64_t{gridDim.x} * blockDim.y) {
      if constexpr (kPool) {
        A v[4][N], d[4][N];
        int64_t at[4];
        bool inside[4];
        load_window<T, N>(g, channels, x, dy, r, c, v, d, at, inside);
#pragma unroll
        for (int p = 0; p < 4; ++p)
#pragma unroll
          for (int k = 0; k < N; ++k) {
            sum[k] += d[p][k];
            product[k] += d[p][k] * (v[p][k] - channels.mean[k]);
          }
      } else {
        A v[N], d[N];
        load_pack<T, N>(x + r * g.channels + c, v);
        load_pack<T, N>(dy + r * g.channels + c, d);
        masked<T, N, kRelu>(channels, v, d);
#pragma unroll
        for (int k = 0; k < N; ++k) {
          sum[k] += d[k];
          product[k] += d[k] * (v[k] - channels.mean[k]);
        }
      }
    }
  }
  add_pairs<N, A>(sum, product, c, sums);
  if (sums.complete(flat_thread(), flat_threads())) terms.write(sums);
}

// dx = slope (d - offset - (x - mean) pull); without offset and pull (evaluation) dx = slope d.
template <class T, int N, bool kRelu, bool kPool>
__global__ void __launch_bounds__(kThreads)
    input_gradient_kernel(Geometry g, const T* x, const T* dy, const acc_t<T>* mean, const acc_t<T>* invstd,
                          const acc_t<T>* gamma, const acc_t<T>* beta, const acc_t<T>* offsets, const acc_t<T>* pulls,
                          T* dx) {
  using A = acc_t<T>;
  const int64_t c = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * N;
  if (c >= g.channels) return;
  Channels<T, N> channels;
  channels.load(mean, invstd, gamma, beta, c);
  A offset[N] = {}, pull[N] = {};
  if (offsets) {
#pragma unroll
    for (int k = 0; k < N; ++k) offset[k] = offsets[c + k], pull[k] = pulls[c + k];
  }
  for (int64_t r = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; r < g.rows; r += int64_t{gridDim.x} * blockDim.y) {
    if constexpr (kPool) {
      A v[4][N], d[4][N];
      int64_t at[4];
      bool inside[4];
      load_window<T, N>(g, channels, x, dy, r, c, v, d, at, inside);
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        if (!inside[p]) continue;
#pragma unroll
        for (int k = 0; k < N; ++k)
          v[p][k] = channels.slope[k] * (d[p][k] - offset[k] - (v[p][k] - channels.mean[k]) * pull[k]);
        store_pack<T, N>(v[p], dx + at[p] + c);
      }
    } else {
      A v[N], d[N];
      load_pack<T, N>(x + r * g.channels + c, v);
      load_pack<T, N>(dy + r * g.channels + c, d);
      masked<T, N, kRelu>(channels, v, d);
#pragma unroll
      for (int k = 0; k < N; ++k) v[k] = channels.slope[k] * (d[k] - offset[k] - (v[k] - channels.mean[k]) * pull[k]);
      store_pack<T, N>(v, dx + r * g.channels + c);
    }
  }
}

template <class T, int N, bool kRelu, bool kPool>
void backward(Context& ctx, bool training, const Tensor& x, const Tensor& gamma, const Tensor& beta, const Tensor& mean,
              const Tensor& invstd, const Tensor& dy, const Tensor& dx, const Tensor& dgamma, const Tensor& dbeta) {
  using A = acc_t<T>;
  const CudaStream stream = ctx.cuda().stream();
  const Geometry g = geometry_of(x, {kRelu, kPool});
  const A *m = mean.data<A>(), *i = invstd.data<A>(), *ga = gamma.data<A>();
  const A* be = kRelu ? beta.data<A>() : nullptr;
  const Launch launch = launch_for(ctx.cuda(), g.rows, g.channels / N);
  Tensor moves;  // [2, c]: offset and pull
  if (dx && training) moves = Tensor::empty({2, g.channels}, dtype_of<A>(), ctx.device());
  A* offset = moves ? moves.data<A>() : nullptr;
  A* pull = moves ? offset + g.channels : nullptr;
  if (moves || dgamma || dbeta) {
    const GradientTerms<A> terms{1 / static_cast<double>(x.numel() / g.channels),
                                 i,
                                 dgamma ? dgamma.data<A>() : nullptr,
                                 dbeta ? dbeta.data<A>() : nullptr,
                                 offset,
                                 pull};
    with_pair_sums<A>(ctx, launch, N, g.channels, [&](size_t shared, const PairSums<A>& sums) {
      gradient_sums_kernel<T, N, kRelu, kPool>
          <<<launch.grid, launch.block, shared, stream>>>(g, x.data<T>(), dy.data<T>(), m, i, ga, be, sums, terms);
      HT_LAUNCHED("batch_norm gradient sums");
    });
  }
  if (!dx) return;
  const dim3 grid(launch.grid.x * 2, launch.grid.y);
  input_gradient_kernel<T, N, kRelu, kPool>
      <<<grid, launch.block, 0, stream>>>(g, x.data<T>(), dy.data<T>(), m, i, ga, be, offset, pull, dx.data<T>());
  HT_LAUNCHED("batch_norm input gradient");
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
  dispatch_packs(x, dy, x.shape().back(), [&]<class T, int N>() {
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
