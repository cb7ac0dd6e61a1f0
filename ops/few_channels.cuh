// What the kernels for convolutions of few input channels share: a block gathers the taps of 128 pixels into shared
// memory and multiplies on the Tensor Cores (mma.m16n8k16).
#pragma once

#include "core/cuda_kernels.cuh"
#include "ops/conv2d_kernels.h"

namespace ht::few {

inline constexpr int kThreads = 128, kWarps = kThreads / 32;
inline constexpr int kPixels = kThreads;  // of a tile: a thread gathers one
inline constexpr int kChannels = 64;      // output channels of a block
inline constexpr int kMostTaps = 64;
inline constexpr int kBlocks = 3;  // an SM
inline constexpr int kPad = 8;     // halves behind each row in shared memory, so that eight rows meet in no bank

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

inline Geometry geometry_of(const Conv2dShape& s) {
  const auto i = [](int64_t v) { return static_cast<int>(v); };
  return {i(s.h),        i(s.w),  i(s.in),           i(s.stride),        i(s.padding),
          i(s.dilation), i(s.kh), i(s.kw),           i(s.taps() * s.in), i(s.out),
          i(s.oh),       i(s.ow), s.n * s.oh * s.ow, Divider(s.ow),      Divider(s.oh)};
}

inline dim3 grid_of(const CudaContext& cuda, const Geometry& g, int blocks = kBlocks) {
  const int64_t tiles = (g.pixels + kPixels - 1) / kPixels, groups = (g.out + kChannels - 1) / kChannels;
  const int64_t most = std::max<int64_t>(1, cuda.sm_count * blocks / groups);
  return dim3(static_cast<unsigned>(std::min(tiles, most)), static_cast<unsigned>(groups));
}

inline const uint16_t* bits(const Tensor& t) { return static_cast<const uint16_t*>(t.data()); }

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

}  // namespace ht::few
