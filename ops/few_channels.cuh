// The kernels for convolutions of few input channels: the output, and the weight's gradient.
#pragma once

#include "ops/few_channels_tile.cuh"

namespace ht::few {

// y = the convolution, or what `sink` makes of it. Block y takes 64 channels; a lane hands eight of them at a time to
// the sink, rounded, always the same eight, and zeros where there is no pixel.
template <class T, int kWidth, int kRun, class Sink>
__global__ void __launch_bounds__(kThreads, kForwardBlocks)
    forward_kernel(Geometry g, const uint16_t* x, const uint16_t* weight, uint16_t* y, Sink sink) {
  constexpr int kRow = kWidth + kPad, kOutRow = kChannels + kPad, kSteps = kWidth / 16, kTiles = kChannels / 8;
  __shared__ Tap list[kWidth];
  __shared__ alignas(16) uint16_t weights[kChannels * kRow];
  __shared__ alignas(16) uint16_t taps[kPixels * kRow];
  __shared__ alignas(16) uint16_t results[kPixels * kOutRow];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first_channel = static_cast<int>(blockIdx.y) * kChannels;
  const int channel = first_channel + lane % kTiles * 8;
  g.list(list, kWidth);
  let_next_start();
  wait_for_previous();
  for (int i = static_cast<int>(threadIdx.x); i < kChannels * kWidth; i += kThreads) {
    const int c = first_channel + i / kWidth, k = i % kWidth;
    weights[i / kWidth * kRow + k] = c < g.out && k < g.taps ? weight[c * g.taps + k] : uint16_t{0};
  }
  sink.start(channel < g.out ? channel : 0);
  __syncthreads();
  const uint16_t* my_weights = weights + (lane / 16 * 8 + lane % 8) * kRow + lane / 8 % 2 * 8;
  uint16_t *mine = taps + warp * 32 * kRow, *out = results + warp * 32 * kOutRow;  // a warp works on its own 32 pixels
  // From the last tile to the first: the next pass begins with what is still in the L2 cache.
  for (int64_t tile = (g.pixels - 1) / kPixels - blockIdx.x; tile >= 0; tile -= gridDim.x) {
    const int64_t first = tile * kPixels + warp * 32;
    g.template gather<kWidth, kRun>(list, x, first + lane, mine + lane * kRow);
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // 16 pixels each
      uint32_t a[kSteps][4];                // pixels 0-7 and 8-15 at k 0-7, both at k 8-15
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
        load_matrices<false>(mine + (half * 16 + lane % 16) * kRow + s * 16 + lane / 16 * 8, a[s]);
#pragma unroll
      for (int t = 0; t < kTiles; t += 2) {
        float c[2][4] = {};
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          uint32_t b[4];  // channels 0-7 at k 0-7 and 8-15, channels 8-15 at both
          load_matrices<false>(my_weights + t * 8 * kRow + s * 16, b);
          multiply<T>(c[0], a[s], b[0], b[1]);
          multiply<T>(c[1], a[s], b[2], b[3]);
        }
#pragma unroll
        for (int u = 0; u < 2; ++u)
#pragma unroll
          for (int low = 0; low < 2; ++low) {  // rows lane / 4 and 8 below
            Pack<T, 2> pair;
#pragma unroll
            for (int k = 0; k < 2; ++k) pair.v[k] = store_as<T>(c[u][low * 2 + k]);
            *reinterpret_cast<Pack<T, 2>*>(out + (half * 16 + low * 8 + lane / 4) * kOutRow + (t + u) * 8 +
                                           lane % 4 * 2) = pair;
          }
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = lane; i < 32 * kTiles; i += 32) {
      const int64_t pixel = first + i / kTiles;
      const Pack<T> values = sink(*reinterpret_cast<const Pack<T>*>(out + i / kTiles * kOutRow + i % kTiles * 8));
      if (pixel < g.pixels && channel < g.out) *reinterpret_cast<Pack<T>*>(y + pixel * g.out + channel) = values;
    }
    __syncwarp();
  }
  sink.finish(first_channel, g.out);
}

// The products of dy's channels and the taps, summed over the pixels: dy^T taps, of which `tail` makes dw in the last
// block. `source` gives eight channels of dy at a pixel. With kOne the column behind the taps is 1: there stand the
// sums of dy.
template <class T, int kWidth, int kRun, bool kOne, class Source, class Tail>
__global__ void __launch_bounds__(kThreads, kBackwardBlocks)
    weight_gradient_kernel(Geometry g, const uint16_t* x, Source source, Products products, Tail tail) {
  constexpr int kRow = kWidth + kPad, kDyRow = kChannels + kPad, kTiles = kWidth / 8, kGroups = kChannels / 16;
  __shared__ Tap list[kWidth];
  __shared__ alignas(16) uint16_t taps[kPixels * kRow];
  __shared__ alignas(16) uint16_t rows[kPixels * kDyRow];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int first_channel = static_cast<int>(blockIdx.y) * kChannels;
  g.list(list, kWidth);
  let_next_start();
  wait_for_previous();
  __syncthreads();
  constexpr int kTurn = 4;
  const int channel = first_channel + lane % 8 * 8;
  float c[kGroups][kTiles][4] = {};
  const uint16_t *my_taps = taps + warp * 32 * kRow, *my_rows = rows + warp * 32 * kDyRow;
  for (int64_t tile = blockIdx.x; tile * kPixels < g.pixels; tile += gridDim.x) {
    // Eight threads take a pixel's channels, 16 bytes each; a warp loads the 32 pixels that it multiplies, in two
    // turns.
    const auto place = [&](int i) { return warp * 32 + i * 4 + lane / 8; };
    const auto exists = [&](int i) { return tile * kPixels + place(i) < g.pixels && channel < g.out; };
    for (int turn = 0; turn < 8; turn += kTurn) {
      typename Source::Loaded loaded[kTurn];
#pragma unroll
      for (int i = 0; i < kTurn; ++i)
        loaded[i] = source.load(exists(turn + i) ? (tile * kPixels + place(turn + i)) * g.out + channel : 0);
      if (turn == 0) {
        const int64_t pixel = tile * kPixels + thread;
        g.template gather<kWidth, kRun>(list, x, pixel, taps + thread * kRow);
        if (kOne && pixel < g.pixels) taps[thread * kRow + g.taps] = one_of<T>();
      }
#pragma unroll
      for (int i = 0; i < kTurn; ++i) {
        const int4 bits = exists(turn + i) ? source.finish(loaded[i]) : int4{0, 0, 0, 0};
        *reinterpret_cast<int4*>(rows + place(turn + i) * kDyRow + lane % 8 * 8) = bits;
      }
    }
    __syncwarp();
    multiply_pixels<T>(c, my_rows, kDyRow, my_taps, kRow);
    __syncwarp();
  }
  float* total = reinterpret_cast<float*>(rows);  // [channels, width]
  constexpr int kTotal = kChannels * kWidth;
  static_assert(kTotal * sizeof(float) <= sizeof rows);
  add_warps(c, total);
  const int64_t groups = gridDim.y, size = groups * kTotal;
  products.add(total, kTotal, int64_t{blockIdx.y} * kTotal, size);
  if (!is_last_block(products.ticket)) return;
  for (int64_t group = 0; group < groups; ++group) {
    __syncthreads();
    products.take(kTotal, group * kTotal, size, [&](int i, float sum) { total[i] = sum; });
    __syncthreads();
    tail.template finish<T, kWidth>(g, static_cast<int>(group) * kChannels, total);
  }
}

}  // namespace ht::few
