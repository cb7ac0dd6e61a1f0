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

// sums [2, c]: sum d and sum d (x - mean), d being dy behind the tail.
template <class T, int N, bool kRelu, bool kPool>
__global__ void __launch_bounds__(kThreads)
    gradient_sums_kernel(Geometry g, const T* x, const T* dy, const acc_t<T>* mean, const acc_t<T>* invstd,
                         const acc_t<T>* gamma, const acc_t<T>* beta, acc_t<T>* sums, bool partial) {
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
  add_pairs<N, A>(sum, product, c, g.channels, sums, partial);
}

template <class A>
__global__ void parameter_gradients_kernel(const A* sums, const A* invstd, int64_t channels, A* dgamma, A* dbeta) {
  HT_GRID_STRIDE(c, channels) {
    if (dbeta) dbeta[c] = sums[c];
    if (dgamma) dgamma[c] = sums[channels + c] * invstd[c];
  }
}

// dx = slope (d - sum d / n - (x - mean) invstd^2 sum d (x - mean) / n); without `sums` (evaluation) dx = slope d.
template <class T, int N, bool kRelu, bool kPool>
__global__ void __launch_bounds__(kThreads)
    input_gradient_kernel(Geometry g, double values, const T* x, const T* dy, const acc_t<T>* mean,
                          const acc_t<T>* invstd, const acc_t<T>* gamma, const acc_t<T>* beta, const acc_t<T>* sums,
                          T* dx) {
  using A = acc_t<T>;
  const int64_t c = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * N;
  if (c >= g.channels) return;
  Channels<T, N> channels;
  channels.load(mean, invstd, gamma, beta, c);
  A offset[N] = {}, pull[N] = {};
  if (sums) {
    const A share = static_cast<A>(1 / values);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      offset[k] = sums[c + k] * share;
      pull[k] = sums[g.channels + c + k] * invstd[c + k] * invstd[c + k] * share;
    }
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
  Tensor sums;
  if ((dx && training) || dgamma || dbeta)
    sums = pair_sums<A>(ctx, launch, N, g.channels, [&](size_t shared, A* out, bool partial) {
      gradient_sums_kernel<T, N, kRelu, kPool>
          <<<launch.grid, launch.block, shared, stream>>>(g, x.data<T>(), dy.data<T>(), m, i, ga, be, out, partial);
      HT_LAUNCHED("batch_norm gradient sums");
    });
  if (dgamma || dbeta) {
    parameter_gradients_kernel<A><<<grid_for(ctx.cuda(), g.channels), kBlock, 0, stream>>>(
        sums.data<A>(), i, g.channels, dgamma ? dgamma.data<A>() : nullptr, dbeta ? dbeta.data<A>() : nullptr);
    HT_LAUNCHED("batch_norm parameter gradients");
  }
  if (!dx) return;
  const double values = static_cast<double>(x.numel() / g.channels);
  const dim3 grid(launch.grid.x * 2, launch.grid.y);
  input_gradient_kernel<T, N, kRelu, kPool><<<grid, launch.block, 0, stream>>>(
      g, values, x.data<T>(), dy.data<T>(), m, i, ga, be, training ? sums.data<A>() : nullptr, dx.data<T>());
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
