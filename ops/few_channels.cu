// Convolutions of few input channels (an image's 3) in half types. No library kernel is good at them: an output pixel
// is a product of only a few dozen taps. The own kernels (ops/few_channels.cuh) read x, and move y or dy, once.
#include "core/tuning.h"
#include "ops/few_channels.cuh"

namespace ht {

using namespace few;

namespace {
// Keeps y as it is and adds up y and y^2 of the lane's channels; `sums` [2, out] may be null.
template <class T>
struct SumSink {
  float* sums;
  float sum[8] = {}, square[8] = {};

  __device__ __forceinline__ void start(int) {}
  __device__ __forceinline__ Pack<T> operator()(const Pack<T>& values) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float value = load_as(values.v[k]);
      sum[k] += value;
      square[k] += value * value;
    }
    return values;
  }
  __device__ void finish(int first_channel, int channels) {
    if (!sums) return;
    constexpr int kLanes = kChannels / 8;  // that share a pixel
    __shared__ float block_sums[2 * kChannels];
    static_assert(2 * kChannels == kThreads);
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    block_sums[thread] = 0;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
#pragma unroll
      for (int lanes = kLanes; lanes < 32; lanes *= 2) {
        sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], lanes);
        square[k] += __shfl_xor_sync(0xffffffffu, square[k], lanes);
      }
      if (lane < kLanes) {
        atomicAdd(block_sums + lane * 8 + k, sum[k]);
        atomicAdd(block_sums + kChannels + lane * 8 + k, square[k]);
      }
    }
    __syncthreads();
    const int channel = first_channel + thread % kChannels;
    if (channel < channels) atomicAdd(sums + thread / kChannels * channels + channel, block_sums[thread]);
  }
};

struct StoredRows {
  const uint16_t* dy;

  using Loaded = int4;
  __device__ __forceinline__ Loaded load(int64_t at) const { return __ldg(reinterpret_cast<const int4*>(dy + at)); }
  __device__ __forceinline__ int4 finish(const Loaded& l) const { return l; }
};

// dw is the sum of products, rounded.
struct StoreWeights {
  uint16_t* dw;

  template <class T, int kWidth>
  __device__ void finish(const Geometry& g, int first, const float* total) const {
    for (int i = static_cast<int>(threadIdx.x); i < kChannels * kWidth; i += kThreads) {
      const int c = first + i / kWidth, k = i % kWidth;
      if (c < g.out && k < g.taps) dw[c * g.taps + k] = store_as<T>(total[i]).bits;
    }
  }
};
}  // namespace

bool has_few_channels(const Conv2dShape& s, DType dtype) {
  return is_half(dtype) && s.in < 8 && s.taps() * s.in <= kMostTaps && s.out % 8 == 0 && !s.pointwise();
}

void few_channels_forward_cuda(Context& ctx, const Conv2dShape& s, const Tensor& x, const Tensor& weight,
                               const Tensor& y, const Tensor& sums) {
  const Geometry g = geometry_of(s);
  dispatch(x.dtype(), g, g.taps, [&]<class T, int kWidth, int kRun>() {
    launch_early(ctx.cuda(), forward_kernel<T, kWidth, kRun, SumSink<T>>, grid_of(ctx.cuda(), g, kForwardBlocks),
                 kThreads, g, bits(x), bits(weight), static_cast<uint16_t*>(y.data()),
                 SumSink<T>{sums ? sums.data<float>() : nullptr});
  });
}

void few_channels_wgrad_cuda(Context& ctx, const Conv2dShape& s, const Tensor& dy, const Tensor& x, const Tensor& dw) {
  const Geometry g = geometry_of(s);
  dispatch(x.dtype(), g, g.taps, [&]<class T, int kWidth, int kRun>() {
    const auto kernel = weight_gradient_kernel<T, kWidth, kRun, false, StoredRows, StoreWeights>;
    const LaunchShape launch{grid_of(ctx.cuda(), g, kBackwardBlocks), kThreads};
    Tensor partial;
    const Products products = make_products(ctx, launch, int64_t{launch.grid.y} * kChannels * kWidth, partial);
    launch_early(ctx.cuda(), kernel, launch, g, bits(x), StoredRows{bits(dy)}, products,
                 StoreWeights{static_cast<uint16_t*>(dw.data())});
  });
}

}  // namespace ht
