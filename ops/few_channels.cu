// Convolutions of few input channels (an image's 3) in half types. No library kernel is good at them: an output pixel
// is a product of only a few dozen taps. The own ones read x, and move y, once; the weight's gradient is in
// ops/few_channels_wgrad.cu.
#include "ops/few_channels.cuh"

namespace ht {

using namespace few;

namespace {
// y = the convolution; `sums` [2, out], unless null: += the sums of y and y^2 a channel. Block y takes 64 channels.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads, kBlocks)
    forward_kernel(Geometry g, const uint16_t* x, const uint16_t* weight, uint16_t* y, float* sums) {
  constexpr int kRow = kWidth + kPad, kOutRow = kChannels + kPad, kSteps = kWidth / 16, kTiles = kChannels / 8;
  __shared__ Tap list[kWidth];
  __shared__ alignas(16) uint16_t taps[kPixels * kRow];  // the weights at first
  __shared__ alignas(16) uint16_t results[kPixels * kOutRow];
  __shared__ float block_sums[2 * kChannels];
  static_assert(kChannels <= kPixels);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first_channel = static_cast<int>(blockIdx.y) * kChannels;
  g.list(list, kWidth);
  block_sums[threadIdx.x] = 0;
  let_next_start();
  wait_for_previous();
  for (int i = static_cast<int>(threadIdx.x); i < kChannels * kWidth; i += kThreads) {
    const int c = first_channel + i / kWidth, k = i % kWidth;
    taps[i / kWidth * kRow + k] = c < g.out && k < g.taps ? weight[c * g.taps + k] : uint16_t{0};
  }
  __syncthreads();
  uint32_t b[kSteps][kTiles][2];  // of k16 x n8: all weights, in registers
#pragma unroll
  for (int s = 0; s < kSteps; ++s)
#pragma unroll
    for (int t = 0; t < kTiles; t += 2) {
      uint32_t m[4];  // channels 0-7 at k 0-7 and 8-15, channels 8-15 at both
      load_matrices<false>(taps + (t * 8 + lane / 16 * 8 + lane % 8) * kRow + s * 16 + lane / 8 % 2 * 8, m);
      b[s][t][0] = m[0], b[s][t][1] = m[1], b[s][t + 1][0] = m[2], b[s][t + 1][1] = m[3];
    }
  __syncthreads();
  float sum[kTiles][2] = {}, square[kTiles][2] = {};
  uint16_t *mine = taps + warp * 32 * kRow, *out = results + warp * 32 * kOutRow;  // a warp works on its own 32 pixels
  for (int64_t tile = blockIdx.x; tile * kPixels < g.pixels; tile += gridDim.x) {
    const int64_t first = tile * kPixels + warp * 32;
    g.template gather<kWidth>(list, x, first + lane, mine + lane * kRow);
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // 16 pixels each
      float c[kTiles][4] = {};
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        uint32_t a[4];  // pixels 0-7 and 8-15 at k 0-7, both at k 8-15
        load_matrices<false>(mine + (half * 16 + lane % 16) * kRow + s * 16 + lane / 16 * 8, a);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) multiply<T>(c[t], a, b[s][t][0], b[s][t][1]);
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int low = 0; low < 2; ++low) {  // rows lane / 4 and 8 below
          Pack<T, 2> pair;
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            pair.v[k] = store_as<T>(c[t][low * 2 + k]);
            const float value = load_as(pair.v[k]);
            sum[t][k] += value;
            square[t][k] += value * value;
          }
          *reinterpret_cast<Pack<T, 2>*>(out + (half * 16 + low * 8 + lane / 4) * kOutRow + t * 8 + lane % 4 * 2) =
              pair;
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = lane; i < 32 * kTiles; i += 32) {
      const int row = i / kTiles, channel = first_channel + i % kTiles * 8;
      if (first + row < g.pixels && channel < g.out)
        *reinterpret_cast<Pack<uint16_t>*>(y + (first + row) * g.out + channel) =
            *reinterpret_cast<const Pack<uint16_t>*>(out + row * kOutRow + i % kTiles * 8);
    }
    __syncwarp();
  }
  if (!sums) return;
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) {
        sum[t][k] += __shfl_xor_sync(0xffffffffu, sum[t][k], lanes);
        square[t][k] += __shfl_xor_sync(0xffffffffu, square[t][k], lanes);
      }
      if (lane < 4) {
        atomicAdd(block_sums + t * 8 + lane * 2 + k, sum[t][k]);
        atomicAdd(block_sums + kChannels + t * 8 + lane * 2 + k, square[t][k]);
      }
    }
  __syncthreads();
  const int channel = first_channel + static_cast<int>(threadIdx.x) % kChannels;
  if (channel < g.out)
    atomicAdd(sums + static_cast<int>(threadIdx.x) / kChannels * g.out + channel, block_sums[threadIdx.x]);
}
}  // namespace

bool has_few_channels(const Conv2dShape& s, DType dtype) {
  return is_half(dtype) && s.in < 8 && s.taps() * s.in <= kMostTaps && s.out % 8 == 0 && !s.pointwise();
}

void few_channels_forward_cuda(Context& ctx, const Conv2dShape& s, const Tensor& x, const Tensor& weight,
                               const Tensor& y, const Tensor& sums) {
  const Geometry g = geometry_of(s);
  dispatch(x.dtype(), g.taps, [&]<class T, int kWidth>() {
    launch_early(ctx.cuda(), forward_kernel<T, kWidth>, grid_of(ctx.cuda(), g), kThreads, g, bits(x), bits(weight),
                 static_cast<uint16_t*>(y.data()), sums ? sums.data<float>() : nullptr);
  });
}

}  // namespace ht
