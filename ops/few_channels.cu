// Convolutions of few input channels (an image's 3) in half types. No library kernel is good at them: an output pixel
// is a product of only a few dozen taps. Here a block gathers the taps of 128 pixels into shared memory and multiplies
// on the Tensor Cores (mma.m16n8k16), so that x is read, and y or dy moved, once.
#include "core/cuda_kernels.cuh"
#include "core/tuning.h"
#include "ops/conv2d_kernels.h"

namespace ht {

namespace {
constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kPixels = kThreads;  // of a tile: a thread gathers one
constexpr int kChannels = 64;      // output channels of a block
constexpr int kMostTaps = 64;
constexpr int kBlocks = 3;  // an SM
constexpr int kPad = 8;     // halves behind each row in shared memory, so that eight rows meet in no bank

// A tap's place from the window's corner: rows, columns, elements.
using Tap = int4;

struct Geometry {
  int h, w, in, stride, padding, dilation, kh, kw;
  int taps, out, oh, ow;
  int64_t pixels;  // n oh ow
  Divider by_ow, by_oh;

  // Taps beyond the real ones reach no image.
  __device__ void list(Tap* to, int width) const {
    for (int k = static_cast<int>(threadIdx.x); k < width; k += kThreads) {
      const int dy = k / in / kw * dilation, dx = k / in % kw * dilation;
      to[k] = k < taps ? Tap{dy, dx, (dy * w + dx) * in + k % in, 0} : Tap{1 << 30, 0, 0, 0};
    }
  }
  // A pixel's taps -> `row`, 16 bytes at a time. All loads are made, of the image's first element where the tap lies
  // outside, so that none waits for a branch.
  template <int kWidth>
  __device__ __forceinline__ void gather(const Tap* list, const uint16_t* x, int64_t pixel, uint16_t* row) const {
    const bool exists = pixel < pixels;
    if (!exists) pixel = 0;
    const int64_t line = by_ow(pixel), n = by_oh(line);
    const int top = static_cast<int>(line - n * oh) * stride - padding;
    const int left = static_cast<int>(pixel - line * ow) * stride - padding;
    const int corner = (top * w + left) * in;
    const uint16_t* image = x + n * h * w * in;
#pragma unroll
    for (int chunk = 0; chunk < kWidth / 8; ++chunk) {
      Pack<uint16_t> values;
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const Tap tap = list[chunk * 8 + e];
        const bool inside = exists & (static_cast<unsigned>(top + tap.x) < static_cast<unsigned>(h)) &
                            (static_cast<unsigned>(left + tap.y) < static_cast<unsigned>(w));
        const uint16_t value = __ldg(image + (inside ? corner + tap.z : 0));
        values.v[e] = inside ? value : uint16_t{0};
      }
      *reinterpret_cast<Pack<uint16_t>*>(row + chunk * 8) = values;
    }
  }
};

// Four 8x8 matrices of 16-bit values: lane i gives the address of row i % 8 of matrix i / 8. Transposed, a lane gets
// two neighbours of a column in place of two of a row.
template <bool kTransposed>
__device__ __forceinline__ void load_matrices(const uint16_t* row, uint32_t (&to)[4]) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
}

// c [16, 8] += a [16, 16] b [16, 8] over the lanes of a warp; lane i holds rows i / 4 and i / 4 + 8 of c, columns 2 (i
// % 4) and the next.
template <class T>
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, Half>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

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

Geometry geometry_of(const Conv2dShape& s) {
  const auto i = [](int64_t v) { return static_cast<int>(v); };
  return {i(s.h),        i(s.w),  i(s.in),           i(s.stride),        i(s.padding),
          i(s.dilation), i(s.kh), i(s.kw),           i(s.taps() * s.in), i(s.out),
          i(s.oh),       i(s.ow), s.n * s.oh * s.ow, Divider(s.ow),      Divider(s.oh)};
}

dim3 grid_of(const CudaContext& cuda, const Geometry& g, int blocks = kBlocks) {
  const int64_t tiles = (g.pixels + kPixels - 1) / kPixels, groups = (g.out + kChannels - 1) / kChannels;
  const int64_t most = std::max<int64_t>(1, cuda.sm_count * blocks / groups);
  return dim3(static_cast<unsigned>(std::min(tiles, most)), static_cast<unsigned>(groups));
}

const uint16_t* bits(const Tensor& t) { return static_cast<const uint16_t*>(t.data()); }

// Calls f.operator()<T, width>(): the taps, rounded up to a multiple of 16.
template <class F>
void dispatch(DType dtype, int taps, F&& f) {
  const auto with = [&]<class T>() {
    if (taps <= 16) return f.template operator()<T, 16>();
    if (taps <= 32) return f.template operator()<T, 32>();
    if (taps <= 48) return f.template operator()<T, 48>();
    return f.template operator()<T, 64>();
  };
  dtype == DType::f16 ? with.template operator()<Half>() : with.template operator()<BFloat16>();
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

namespace {
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
