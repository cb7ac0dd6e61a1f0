// The weight's gradient of convolutions of few input channels, in one pass over x and dy.
#include "core/tuning.h"
#include "ops/few_channels.cuh"

namespace ht {

using namespace few;

namespace {
// Where blocks add their parts of dw: by atomics into zeros, or in deterministic mode each into a row of its own.
struct WeightSums {
  float* at;         // [out, width]; parts: [parts, out, width]
  int64_t parts;     // 0: atomics
  unsigned* ticket;  // counts blocks; 0 before and after
};

// Where eight channels of dy at a pixel come from: memory, or a batch norm's input gradient, computed here.
struct StoredRows {
  static constexpr int kBlocks = 3;  // an SM
  const uint16_t* dy;

  struct Loaded {
    int4 dy;
  };
  __device__ __forceinline__ void start(int64_t, int) {}
  __device__ __forceinline__ Loaded load(int64_t at) const { return {__ldg(reinterpret_cast<const int4*>(dy + at))}; }
  __device__ __forceinline__ int4 finish(const Loaded& l) const { return l.dy; }
};

template <class T>
struct NormRows {
  static constexpr int kBlocks = 2;
  const uint16_t *x, *dy;
  const float* coefficients;
  float mean[8] = {}, slope[8] = {}, beta[8] = {}, tilt[8] = {}, shift[8] = {};

  struct Loaded {
    int4 x, dy;
  };
  __device__ __forceinline__ void start(int64_t channels, int c) {
    for (int k = 0; k < 8; ++k) {
      const float* at = coefficients + c + k;
      mean[k] = at[0], slope[k] = at[channels], beta[k] = at[2 * channels], tilt[k] = at[3 * channels];
      shift[k] = at[4 * channels];
    }
  }
  __device__ __forceinline__ Loaded load(int64_t at) const {
    return {__ldg(reinterpret_cast<const int4*>(x + at)), __ldg(reinterpret_cast<const int4*>(dy + at))};
  }
  __device__ __forceinline__ int4 finish(const Loaded& l) const {
    Pack<T> v, d;
    memcpy(&v, &l.x, sizeof v);
    memcpy(&d, &l.dy, sizeof d);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float offset = load_as(v.v[k]) - mean[k];
      const float passed = offset * slope[k] + beta[k] > 0 ? load_as(d.v[k]) : 0.0f;
      v.v[k] = store_as<T>(slope[k] * passed + (offset * tilt[k] + shift[k]));
    }
    int4 bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
  }
};

// dw = the sum over pixels of dy^T taps; the last block rounds the sum and leaves the zeros as they were.
template <class T, int kWidth, class Rows>
__global__ void __launch_bounds__(kThreads, Rows::kBlocks)
    weight_gradient_kernel(Geometry g, const uint16_t* x, Rows source, WeightSums sums, uint16_t* dw) {
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
  source.start(g.out, channel < g.out ? channel : 0);
  float c[kGroups][kTiles][4] = {};
  const uint16_t *my_taps = taps + warp * 32 * kRow, *my_rows = rows + warp * 32 * kDyRow;
  for (int64_t tile = blockIdx.x; tile * kPixels < g.pixels; tile += gridDim.x) {
    // Eight threads take a pixel's channels, 16 bytes each; a warp loads the 32 pixels that it multiplies, in two
    // turns.
    const auto place = [&](int i) { return warp * 32 + i * 4 + lane / 8; };
    const auto exists = [&](int i) { return tile * kPixels + place(i) < g.pixels && channel < g.out; };
    for (int turn = 0; turn < 8; turn += kTurn) {
      typename Rows::Loaded loaded[kTurn];
#pragma unroll
      for (int i = 0; i < kTurn; ++i)
        loaded[i] = source.load(exists(turn + i) ? (tile * kPixels + place(turn + i)) * g.out + channel : 0);
      if (turn == 0) g.template gather<kWidth>(list, x, tile * kPixels + thread, taps + thread * kRow);
#pragma unroll
      for (int i = 0; i < kTurn; ++i) {
        const int4 bits = exists(turn + i) ? source.finish(loaded[i]) : int4{0, 0, 0, 0};
        *reinterpret_cast<int4*>(rows + place(turn + i) * kDyRow + lane % 8 * 8) = bits;
      }
    }
    __syncwarp();
#pragma unroll
    for (int s = 0; s < 2; ++s) {  // 16 pixels each: the k of these products
      uint32_t b[kTiles][2];
#pragma unroll
      for (int t = 0; t < kTiles; t += 2) {
        uint32_t m[4];  // taps 0-7 at pixels 0-7 and 8-15, taps 8-15 at both
        load_matrices<true>(my_taps + (s * 16 + lane % 16) * kRow + t * 8 + lane / 16 * 8, m);
        b[t][0] = m[0], b[t][1] = m[1], b[t + 1][0] = m[2], b[t + 1][1] = m[3];
      }
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        uint32_t a[4];  // channels 0-7 and 8-15 at pixels 0-7, both at pixels 8-15
        load_matrices<true>(my_rows + (s * 16 + lane / 16 * 8 + lane % 8) * kDyRow + group * 16 + lane / 8 % 2 * 8, a);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) multiply<T>(c[group][t], a, b[t][0], b[t][1]);
      }
    }
    __syncwarp();
  }
  float* total = reinterpret_cast<float*>(rows);  // [channels, width] of this block
  static_assert(kChannels * kWidth * sizeof(float) <= sizeof rows);
  __syncthreads();
  for (int i = thread; i < kChannels * kWidth; i += kThreads) total[i] = 0;
  __syncthreads();
  for (int turn = 0; turn < kWarps; ++turn) {  // in order, so that sums are the same each time
    if (warp == turn) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
#pragma unroll
        for (int t = 0; t < kTiles; ++t)
#pragma unroll
          for (int k = 0; k < 4; ++k)
            total[(group * 16 + k / 2 * 8 + lane / 4) * kWidth + t * 8 + lane % 4 * 2 + k % 2] += c[group][t][k];
    }
    __syncthreads();
  }
  const int size = g.out * kWidth, base = first_channel * kWidth;
  for (int i = thread; i < kChannels * kWidth && base + i < size; i += kThreads) {
    if (sums.parts)
      sums.at[int64_t{blockIdx.x} * size + base + i] = total[i];
    else
      atomicAdd(sums.at + base + i, total[i]);
  }
  if (!is_last_block(sums.ticket)) return;
  constexpr int kAtOnce = 8;
  for (int i = thread; i < size; i += kAtOnce * kThreads) {
    float sum[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u)
      if (i + u * kThreads < size) sum[u] = __ldcg(sums.at + i + u * kThreads);
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int at = i + u * kThreads;
      if (at >= size) break;
      for (int64_t p = 1; p < sums.parts; ++p) sum[u] += __ldcg(sums.at + p * size + at);
      if (!sums.parts) sums.at[at] = 0;
      if (at % kWidth < g.taps) dw[at / kWidth * g.taps + at % kWidth] = store_as<T>(sum[u]).bits;
    }
  }
}

// rows.operator()<T>(): where dy comes from.
template <class F>
void weight_gradient(Context& ctx, const Conv2dShape& s, const Tensor& x, const Tensor& dw, F&& rows) {
  const Geometry g = geometry_of(s);
  dispatch(x.dtype(), g.taps, [&]<class T, int kWidth>() {
    constexpr size_t kTicket = 256;  // bytes, so that the sums stay aligned
    const auto source = rows.template operator()<T>();
    using Rows = std::remove_const_t<decltype(source)>;
    const dim3 grid = grid_of(ctx.cuda(), g, Rows::kBlocks);
    char* zeros = static_cast<char*>(
        ctx.cuda().zeros_of(kTicket + static_cast<size_t>(g.out) * static_cast<size_t>(kWidth) * sizeof(float)));
    WeightSums sums{reinterpret_cast<float*>(zeros + kTicket), 0, reinterpret_cast<unsigned*>(zeros)};
    Tensor partial;
    if (deterministic()) {
      partial = Tensor::empty({grid.x, g.out, kWidth}, DType::f32, ctx.device());
      sums.at = partial.data<float>(), sums.parts = grid.x;
    }
    launch_early(ctx.cuda(), weight_gradient_kernel<T, kWidth, Rows>, grid, kThreads, g, bits(x), source, sums,
                 static_cast<uint16_t*>(dw.data()));
  });
}
}  // namespace

void few_channels_wgrad_cuda(Context& ctx, const Conv2dShape& s, const Tensor& dy, const Tensor& x, const Tensor& dw) {
  weight_gradient(ctx, s, x, dw, [&]<class T>() { return StoredRows{bits(dy)}; });
}

void few_channels_wgrad_cuda(Context& ctx, const Conv2dShape& s, const NormGradient& dy, const Tensor& x,
                             const Tensor& dw) {
  weight_gradient(ctx, s, x, dw, [&]<class T>() {
    NormRows<T> rows;
    rows.x = bits(dy.x), rows.dy = bits(dy.dy), rows.coefficients = dy.coefficients.data<float>();
    return rows;
  });
}

}  // namespace ht
