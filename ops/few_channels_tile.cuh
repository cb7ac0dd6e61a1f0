// What the kernels for convolutions of few input channels are made of: a block gathers the taps of 128 pixels into
// shared memory, a row a pixel, and multiplies on the Tensor Cores (mma.m16n8k16); clusters of blocks add up their
// products.
#pragma once

#include <cooperative_groups.h>

#include "core/cuda_kernels.cuh"
#include "ops/conv2d_kernels.h"

namespace ht::few {

inline constexpr int kThreads = 128, kWarps = kThreads / 32;
inline constexpr int kPixels = kThreads;  // of a tile: a thread gathers one
inline constexpr int kChannels = 64;      // output channels of a block
inline constexpr int kMostTaps = 64;
inline constexpr int kForwardBlocks = 5, kProductBlocks = 4, kBackwardBlocks = 3;  // an SM
inline constexpr int kPad = 8;  // halves behind each row in shared memory, so that eight rows meet in no bank

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
  // A pixel's taps -> `row`, 16 bytes at a time. All loads are made, of the image's first elements where the tap lies
  // outside, so that none waits for a branch. kRun taps each are the channels of one place.
  template <int kWidth, int kRun>
  __device__ __forceinline__ void gather(const Tap* list, const uint16_t* x, int64_t pixel, uint16_t* row) const {
    const bool exists = pixel < pixels;
    if (!exists) pixel = 0;
    const int64_t line = by_ow(pixel), n = by_oh(line);
    const int top = static_cast<int>(line - n * oh) * stride - padding;
    const int left = static_cast<int>(pixel - line * ow) * stride - padding;
    const int corner = (top * w + left) * in;
    const uint16_t* image = x + n * h * w * in;
    const uint16_t* from = image;
    bool inside = false;
#pragma unroll
    for (int chunk = 0; chunk < kWidth / 8; ++chunk) {
      Pack<uint16_t> values;
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const int k = chunk * 8 + e;
        if (k % kRun == 0) {
          const Tap tap = list[k];
          inside = exists & (static_cast<unsigned>(top + tap.x) < static_cast<unsigned>(h)) &
                   (static_cast<unsigned>(left + tap.y) < static_cast<unsigned>(w));
          from = image + (inside ? corner + tap.z : 0);
        }
        const uint16_t value = __ldg(from + k % kRun);
        values.v[e] = inside ? value : uint16_t{0};
      }
      *reinterpret_cast<Pack<uint16_t>*>(row + chunk * 8) = values;
    }
  }
};

template <class T>
__device__ __forceinline__ uint16_t one_of() {
  return std::is_same_v<T, Half> ? uint16_t{0x3c00} : uint16_t{0x3f80};
}

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

// c [16 kGroups, 8 kTiles] += the transposed rows times the taps of a warp's 32 pixels, both in shared memory, `width`
// values apart.
template <class T, int kGroups, int kTiles>
__device__ __forceinline__ void multiply_pixels(float (&c)[kGroups][kTiles][4], const uint16_t* rows, int row_width,
                                                const uint16_t* taps, int tap_width) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int s = 0; s < 2; ++s) {  // 16 pixels each: the k of these products
    uint32_t b[kTiles][2];
#pragma unroll
    for (int t = 0; t < kTiles; t += 2) {
      uint32_t m[4];  // taps 0-7 at pixels 0-7 and 8-15, taps 8-15 at both
      load_matrices<true>(taps + (s * 16 + lane % 16) * tap_width + t * 8 + lane / 16 * 8, m);
      b[t][0] = m[0], b[t][1] = m[1], b[t + 1][0] = m[2], b[t + 1][1] = m[3];
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      uint32_t a[4];  // rows' values 0-7 and 8-15 at pixels 0-7, both at pixels 8-15
      load_matrices<true>(rows + (s * 16 + lane / 16 * 8 + lane % 8) * row_width + group * 16 + lane / 8 % 2 * 8, a);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) multiply<T>(c[group][t], a, b[t][0], b[t][1]);
    }
  }
}

// total [16 kGroups, 8 kTiles] in shared memory = the sum of the warps' c, in order, so that it is the same each time.
// Called by whole blocks, when nobody needs what was there.
template <int kGroups, int kTiles>
__device__ __forceinline__ void add_warps(const float (&c)[kGroups][kTiles][4], float* total) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  __syncthreads();
  for (int turn = 0; turn < kWarps; ++turn) {
    if (thread / 32 == turn) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
#pragma unroll
        for (int t = 0; t < kTiles; ++t)
#pragma unroll
          for (int k = 0; k < 4; k += 2) {
            float2* to = reinterpret_cast<float2*>(total + (group * 16 + k / 2 * 8 + lane / 4) * kTiles * 8 + t * 8 +
                                                   lane % 4 * 2);
            float2 sum = turn == 0 ? float2{0, 0} : *to;
            sum.x += c[group][t][k], sum.y += c[group][t][k + 1];
            *to = sum;
          }
    }
    __syncthreads();
  }
}

// Where clusters of blocks add their products [rows, width]: by atomics into zeros, or in deterministic mode each into
// a row of its own of [parts, rows, width]. Whoever takes the sums leaves the zeros as they were.
struct Products {
  float* at;
  int64_t parts;     // 0: atomics
  unsigned* ticket;  // counts blocks; 0 before and after

  // `count`, a multiple of 4 for each block of the cluster, of the block's values, to `offset` of `size`. They are in
  // shared memory, all written before; called by whole blocks.
  __device__ __forceinline__ void add(float* total, int count, int64_t offset, int64_t size) const {
    const int thread = static_cast<int>(threadIdx.x);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    auto cluster = cooperative_groups::this_cluster();
    const int blocks = static_cast<int>(cluster.num_blocks()), share = count / blocks;
    const int begin = static_cast<int>(cluster.block_rank()) * share;
    cluster.sync();
    for (int i = begin + 4 * thread; i < begin + share; i += 4 * kThreads) {
      float4 sum{};
#pragma unroll 4
      for (int b = 0; b < blocks; ++b) {
        const float4 v = *reinterpret_cast<const float4*>(cluster.map_shared_rank(total, b) + i);
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
      }
      if (parts)
        *reinterpret_cast<float4*>(at + int64_t{blockIdx.x} / blocks * size + offset + i) = sum;
      else
        atomicAdd(reinterpret_cast<float4*>(at + offset + i), sum);
    }
    cluster.sync();  // till then others read this block's values
#else
    for (int i = thread; i < count; i += kThreads) {
      if (parts)
        at[int64_t{blockIdx.x} * size + offset + i] = total[i];
      else
        atomicAdd(at + offset + i, total[i]);
    }
#endif
  }
  // Calls put(i, sum of value offset + i of `size`) for `count` of them, shared by the threads of a block; all loads of
  // a turn go out before the zeros come back.
  template <class Put>
  __device__ __forceinline__ void take(int count, int64_t offset, int64_t size, Put&& put) const {
    constexpr int kAtOnce = 8;
    const int threads = static_cast<int>(blockDim.x * blockDim.y);
    const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
    for (int i = thread; i < count; i += kAtOnce * threads) {
      float sum[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u)
        if (i + u * threads < count) sum[u] = __ldcg(at + offset + i + u * threads);
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int k = i + u * threads;
        if (k >= count) break;
        for (int64_t p = 1; p < parts; ++p) sum[u] += __ldcg(at + p * size + offset + k);
        if (!parts) at[offset + k] = 0;
        put(k, sum[u]);
      }
    }
  }
};

// `partial` owns the parts.
inline Products make_products(Context& ctx, const LaunchShape& launch, int64_t size, Tensor& partial) {
  constexpr size_t kTicket = 256;  // bytes, so that the sums stay aligned
  char* zeros = static_cast<char*>(ctx.cuda().zeros_of(kTicket + static_cast<size_t>(size) * sizeof(float)));
  Products products{reinterpret_cast<float*>(zeros + kTicket), 0, reinterpret_cast<unsigned*>(zeros)};
  if (deterministic()) {
    products.parts = launch.grid.x / launch.cluster;
    partial = Tensor::empty({products.parts, size}, DType::f32, ctx.device());
    products.at = partial.data<float>();
  }
  return products;
}

inline Geometry geometry_of(const Conv2dShape& s) {
  const auto i = [](int64_t v) { return static_cast<int>(v); };
  return {i(s.h),        i(s.w),  i(s.in),           i(s.stride),        i(s.padding),
          i(s.dilation), i(s.kh), i(s.kw),           i(s.taps() * s.in), i(s.out),
          i(s.oh),       i(s.ow), s.n * s.oh * s.ow, Divider(s.ow),      Divider(s.oh)};
}

inline dim3 grid_of(const CudaContext& cuda, const Geometry& g, int blocks) {
  const int64_t tiles = (g.pixels + kPixels - 1) / kPixels, groups = (g.out + kChannels - 1) / kChannels;
  const int64_t most = std::max<int64_t>(1, cuda.sm_count * blocks / groups);
  return dim3(static_cast<unsigned>(std::min(tiles, most)), static_cast<unsigned>(groups));
}

inline const uint16_t* bits(const Tensor& t) { return static_cast<const uint16_t*>(t.data()); }

// Calls f.operator()<T, width, run>(): `columns`, rounded up to a multiple of 16, and how many neighbours of the taps
// the kernel knows to be one place's; an image's colours are.
template <class F>
void dispatch(DType dtype, const Geometry& g, int columns, F&& f) {
  const auto with_run = [&]<class T, int kRun>() {
    if (columns <= 16) return f.template operator()<T, 16, kRun>();
    if (columns <= 32) return f.template operator()<T, 32, kRun>();
    if (columns <= 48) return f.template operator()<T, 48, kRun>();
    return f.template operator()<T, 64, kRun>();
  };
  const auto with = [&]<class T>() {
    g.in == 3 ? with_run.template operator()<T, 3>() : with_run.template operator()<T, 1>();
  };
  dtype == DType::f16 ? with.template operator()<Half>() : with.template operator()<BFloat16>();
}

}  // namespace ht::few
