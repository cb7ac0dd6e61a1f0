// Batch norm and ReLU behind a convolution of few input channels, in training, without the convolution's output in
// memory. That is linear in its few taps t: y = W t. So the batch's statistics follow from the products of the taps
// with each other, G = sum t t^T over the n pixels, and their sums m = sum t:
//   mean = W m / n,  E[y^2] = diag(W G W^T) / n.
// And with d = the output's gradient where the output is positive, M = sum d t^T and S = sum d:
//   P = sum d (y - mean) = diag(M W^T) - mean S,  dgamma = P invstd,  dbeta = S,
//   dW = gamma invstd (M - S m^T / n - P invstd^2 (W G - mean m^T) / n).
// Each pass computes y again from the taps where it needs it; m and S stand in the column of a tap that is always 1.
#include "ops/batch_norm.cuh"
#include "ops/few_channels.cuh"
#include "ops/few_channels_norm.h"

namespace ht {

using namespace few;

namespace {
// The products of the taps and the 1 behind them, [width, width].
template <class T, int kWidth, int kRun>
__global__ void __launch_bounds__(kThreads, kWidth <= 32 ? kProductBlocks : kProductBlocks / 2)
    tap_products_kernel(Geometry g, const uint16_t* x, Products products) {
  constexpr int kRow = kWidth + kPad;
  __shared__ Tap list[kWidth];
  __shared__ alignas(16) uint16_t taps[kPixels * kRow];
  const int thread = static_cast<int>(threadIdx.x);
  g.list(list, kWidth);
  let_next_start();
  wait_for_previous();
  __syncthreads();
  float c[kWidth / 16][kWidth / 8][4] = {};
  const uint16_t* mine = taps + thread / 32 * 32 * kRow;
  for (int64_t tile = blockIdx.x; tile * kPixels < g.pixels; tile += gridDim.x) {
    const int64_t pixel = tile * kPixels + thread;
    g.template gather<kWidth, kRun>(list, x, pixel, taps + thread * kRow);
    if (pixel < g.pixels) taps[thread * kRow + g.taps] = one_of<T>();
    __syncwarp();
    multiply_pixels<T>(c, mine, kRow, mine, kRow);
    __syncwarp();
  }
  float* total = reinterpret_cast<float*>(taps);
  static_assert(kWidth * kWidth * sizeof(float) <= sizeof taps);
  add_warps(c, total);
  products.add(total, kWidth * kWidth, 0, kWidth * kWidth);
}

constexpr int kMomentThreads = 1024, kMomentWarps = kMomentThreads / 32, kMostOut = 1024;

// The sums of four values over a warp: lane i gets that of value i / 8.
__device__ __forceinline__ double four_sums(const double (&v)[4], int lane) {
  const bool upper = lane & 16, odd = lane & 8;
  double pair[2];
#pragma unroll
  for (int k = 0; k < 2; ++k)
    pair[k] = (upper ? v[2 + k] : v[k]) + __shfl_xor_sync(0xffffffffu, upper ? v[k] : v[2 + k], 16);
  double sum = (odd ? pair[1] : pair[0]) + __shfl_xor_sync(0xffffffffu, odd ? pair[0] : pair[1], 8);
  for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return sum;
}

// One block: the statistics, and `moments` [out + 1, width]: W G - mean m^T, and m. A warp takes two channels at once:
// all warps read the products through one port, so that each is read for both.
template <class T, int kWidth>
__global__ void __launch_bounds__(kMomentThreads, 1)
    moments_kernel(int taps, int out, const uint16_t* weight, Products products, float* moments,
                   bn::Statistics<T> statistics) {
  constexpr int kRow = kWidth + 1, kHalves = (kWidth + 31) / 32;  // columns of a lane
  __shared__ float product[kWidth * kRow], pairs[2 * kMostOut];
  __shared__ alignas(16) float weights[kMomentWarps][2][kWidth];
  let_next_start();
  wait_for_previous();
  const int thread = bn::flat_thread(), lane = thread % 32, warp = thread / 32;
  float(&mine)[2][kWidth] = weights[warp];
  float next[2][kHalves];  // weights of the warp's next channels, on their way while others are worked on
  const auto fetch = [&](int c) {
#pragma unroll
    for (int which = 0; which < 2; ++which)
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const int channel = c + which * kMomentWarps;
        T bits{};
        if (channel < out && h * 32 + lane < taps) bits.bits = weight[channel * taps + h * 32 + lane];
        next[which][h] = load_as(bits);
      }
  };
  fetch(warp);
  products.take(kWidth * kWidth, 0, kWidth * kWidth,
                [&](int i, float sum) { product[i / kWidth * kRow + i % kWidth] = sum; });
  __syncthreads();
  double sums[kHalves];  // of the lane's taps
#pragma unroll
  for (int h = 0; h < kHalves; ++h) sums[h] = static_cast<double>(product[(h * 32 + lane) % kWidth * kRow + taps]);
  for (int c = warp; c < out; c += 2 * kMomentWarps) {
    float w[2][kHalves], u[2][kHalves] = {};  // in FP32, as the products are: a conversion costs more than the product
#pragma unroll
    for (int which = 0; which < 2; ++which)
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        w[which][h] = next[which][h];
        if (h * 32 + lane < kWidth) mine[which][h * 32 + lane] = w[which][h];
      }
    __syncwarp();
    fetch(c + 2 * kMomentWarps);
#pragma unroll
    for (int j = 0; j < kWidth; j += 4) {  // beyond the taps the weights are 0
      if (j >= taps) break;
      const Pack<float, 4> first = *reinterpret_cast<const Pack<float, 4>*>(&mine[0][j]);
      const Pack<float, 4> second = *reinterpret_cast<const Pack<float, 4>*>(&mine[1][j]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int h = 0; h < kHalves; ++h) {
          const float p = product[(j + i) * kRow + (h * 32 + lane) % kWidth];
          u[0][h] += first.v[i] * p;
          u[1][h] += second.v[i] * p;
        }
    }
    double total[4] = {};  // of each channel: W m and the diagonal of W G W^T
#pragma unroll
    for (int which = 0; which < 2; ++which)
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        if (h * 32 + lane >= taps) continue;
        total[2 * which] += static_cast<double>(w[which][h]) * sums[h];
        total[2 * which + 1] += static_cast<double>(w[which][h]) * static_cast<double>(u[which][h]);
      }
    const double sum = four_sums(total, lane);
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const int channel = c + which * kMomentWarps;
      const double mean = __shfl_sync(0xffffffffu, sum, which * 16) * statistics.share;
      if (channel >= out) continue;
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const int k = h * 32 + lane;
        if (k < kWidth)
          moments[channel * kWidth + k] =
              k < taps ? static_cast<float>(static_cast<double>(u[which][h]) - mean * sums[h]) : 0.0f;
      }
      if (lane / 16 == which && lane % 8 == 0) pairs[lane / 8 % 2 * out + channel] = static_cast<float>(sum);
    }
    __syncwarp();
  }
  if (thread < kWidth) moments[out * kWidth + thread] = product[thread * kRow + taps];
  __syncthreads();
  statistics.sums = {pairs, out, 1, nullptr};
  statistics.template write<1>(out);
}

// Normalises the lane's eight channels.
template <class T>
struct NormaliseSink {
  const float *means, *invstds, *gammas, *betas;
  float mean[8] = {}, slope[8] = {}, beta[8] = {};

  __device__ __forceinline__ void start(int c) {
    for (int k = 0; k < 8; ++k)
      mean[k] = means[c + k], slope[k] = gammas[c + k] * invstds[c + k], beta[k] = betas[c + k];
  }
  __device__ __forceinline__ Pack<T> operator()(Pack<T> values) const {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float y = (load_as(values.v[k]) - mean[k]) * slope[k] + beta[k];
      values.v[k] = store_as<T>(y < 0 ? 0.0f : y);
    }
    return values;
  }
  __device__ __forceinline__ void finish(int, int) const {}
};

// dy where y is positive.
template <class T>
struct MaskedRows {
  const uint16_t *y, *dy;

  struct Loaded {
    int4 y, dy;
  };
  static __device__ __forceinline__ int positive(int pair) {
    if constexpr (std::is_same_v<T, Half>) {
      __half2 v;
      memcpy(&v, &pair, sizeof v);
      return static_cast<int>(__hgt2_mask(v, __float2half2_rn(0)));
    } else {
      __nv_bfloat162 v;
      memcpy(&v, &pair, sizeof v);
      return static_cast<int>(__hgt2_mask(v, __float2bfloat162_rn(0)));
    }
  }
  __device__ __forceinline__ Loaded load(int64_t at) const {
    return {__ldg(reinterpret_cast<const int4*>(y + at)), __ldg(reinterpret_cast<const int4*>(dy + at))};
  }
  __device__ __forceinline__ int4 finish(const Loaded& l) const {
    return {l.dy.x & positive(l.y.x), l.dy.y & positive(l.y.y), l.dy.z & positive(l.y.z), l.dy.w & positive(l.y.w)};
  }
};

// What the products M and S become (above).
struct NormTail {
  const uint16_t* weight;
  const float *moments, *mean, *invstd, *gamma;
  uint16_t* dw;
  float *dgamma, *dbeta;  // may be null
  double share;           // 1 / n

  template <class T, int kWidth>
  __device__ void finish(const Geometry& g, int first, const float* total) const {
    __shared__ float slope[kChannels], offset[kChannels], pull[kChannels];
    const int thread = static_cast<int>(threadIdx.x);
    static_assert(kThreads == 2 * kChannels);  // two threads a channel
    const int channel = thread / 2, c = min(first + channel, g.out - 1);
    const float* row = total + channel * kWidth;
    const float m = mean[c], i = invstd[c], ga = gamma[c];
    constexpr int kEach = kChannels * kWidth / kThreads;  // of dw's elements, in rows of kWidth
    float sum[kEach], moment[kEach];                      // on their way meanwhile
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      const int at = thread + u * kThreads, to = min(first + at / kWidth, g.out - 1);
      sum[u] = moments[g.out * kWidth + at % kWidth], moment[u] = moments[to * kWidth + at % kWidth];
    }
    double p = 0;
#pragma unroll 8
    for (int k = thread % 2; k < g.taps; k += 2) {
      T w;
      w.bits = weight[c * g.taps + k];
      p += static_cast<double>(load_as(w)) * static_cast<double>(row[k]);
    }
    const double s = row[g.taps], inv = i;
    p += __shfl_xor_sync(0xffffffffu, p, 1) - static_cast<double>(m) * s;
    if (thread % 2 == 0 && first + channel < g.out) {
      if (dbeta) dbeta[c] = static_cast<float>(s);
      if (dgamma) dgamma[c] = static_cast<float>(p * inv);
      slope[channel] = ga * i;
      offset[channel] = static_cast<float>(s * share);
      pull[channel] = static_cast<float>(p * inv * inv * share);
    }
    __syncthreads();
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      const int at = thread + u * kThreads, r = at / kWidth, to = first + r, k = at % kWidth;
      if (to >= g.out || k >= g.taps) continue;
      const float value = total[at] - offset[r] * sum[u] - pull[r] * moment[u];
      dw[to * g.taps + k] = store_as<T>(slope[r] * value).bits;
    }
  }
};
}  // namespace

bool fits_few_channels_norm(const Conv2dShape& s, DType dtype) {
  return has_few_channels(s, dtype) && s.taps() * s.in < kMostTaps && s.out <= kMostOut && s.n * s.oh * s.ow > 1;
}

Tensor few_channels_norm_forward_cuda(Context& ctx, const Conv2dShape& s, const BatchNormOptions& options,
                                      const Tensor& x, const Tensor& weight, const RunningStats& running,
                                      const Tensor& mean, const Tensor& invstd) {
  const Geometry g = geometry_of(s);
  Tensor moments;
  dispatch(x.dtype(), g, g.taps + 1, [&]<class T, int kWidth, int kRun>() {
    const auto kernel = tap_products_kernel<T, kWidth, kRun>;
    constexpr unsigned kCluster = 4;  // many blocks have one tile: their sums meet before they add them to the others'
    LaunchShape launch{grid_of(ctx.cuda(), g, kWidth <= 32 ? kProductBlocks : kProductBlocks / 2), kThreads};
    if (ctx.cuda().kernels >= 90) launch.cluster = kCluster;
    launch.grid = dim3((launch.grid.x + launch.cluster - 1) / launch.cluster * launch.cluster);
    Tensor partial;
    const Products products = make_products(ctx, launch, kWidth * kWidth, partial);
    moments = Tensor::empty({s.out + 1, kWidth}, DType::f32, ctx.device());
    const auto statistics = bn::statistics_of<T>(options, g.pixels, running, mean, invstd);
    launch_early(ctx.cuda(), kernel, launch, g, bits(x), products);
    launch_early(ctx.cuda(), moments_kernel<T, kWidth>, 1, dim3(32, kMomentThreads / 32), g.taps,
                 static_cast<int>(s.out), bits(weight), products, moments.data<float>(), statistics);
  });
  return moments;
}

void few_channels_norm_apply_cuda(Context& ctx, const Conv2dShape& s, const Tensor& x, const Tensor& weight,
                                  const Tensor& gamma, const Tensor& beta, const Tensor& mean, const Tensor& invstd,
                                  const Tensor& y) {
  const Geometry g = geometry_of(s);
  dispatch(x.dtype(), g, g.taps, [&]<class T, int kWidth, int kRun>() {
    launch_early(ctx.cuda(), forward_kernel<T, kWidth, kRun, NormaliseSink<T>>, grid_of(ctx.cuda(), g, kForwardBlocks),
                 kThreads, g, bits(x), bits(weight), static_cast<uint16_t*>(y.data()),
                 NormaliseSink<T>{mean.data<float>(), invstd.data<float>(), gamma.data<float>(), beta.data<float>()});
  });
}

void few_channels_norm_wgrad_cuda(Context& ctx, const Conv2dShape& s, const Tensor& x, const Tensor& weight,
                                  const Tensor& gamma, const Tensor& mean, const Tensor& invstd, const Tensor& moments,
                                  const Tensor& y, const Tensor& dy, const Tensor& dw, const Tensor& dgamma,
                                  const Tensor& dbeta) {
  const Geometry g = geometry_of(s);
  dispatch(x.dtype(), g, g.taps + 1, [&]<class T, int kWidth, int kRun>() {
    const auto kernel = weight_gradient_kernel<T, kWidth, kRun, true, MaskedRows<T>, NormTail>;
    const LaunchShape launch{grid_of(ctx.cuda(), g, kBackwardBlocks), kThreads};
    Tensor partial;
    const Products products = make_products(ctx, launch, int64_t{launch.grid.y} * kChannels * kWidth, partial);
    const NormTail tail{bits(weight),
                        moments.data<float>(),
                        mean.data<float>(),
                        invstd.data<float>(),
                        gamma.data<float>(),
                        static_cast<uint16_t*>(dw.data()),
                        dgamma ? dgamma.data<float>() : nullptr,
                        dbeta ? dbeta.data<float>() : nullptr,
                        1 / static_cast<double>(g.pixels)};
    launch_early(ctx.cuda(), kernel, launch, g, bits(x), MaskedRows<T>{bits(y), bits(dy)}, products, tail);
  });
}

}  // namespace ht
