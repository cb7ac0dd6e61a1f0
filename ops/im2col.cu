#include "core/cuda_kernels.cuh"
#include "ops/conv2d_kernels.h"

namespace ht {

namespace {
constexpr int kMostTaps = 64;  // products of an output pixel

struct Geometry {
  int h, w, in, stride, padding, dilation, kh, kw;
  int chunks;  // of 8 columns, 16 bytes, of a pixel
  int ow, oh;
  int64_t pixels;
  Divider by_ow, by_oh;
};

// w [rows, taps] -> wide [rows, columns], zeros behind.
struct Weights {
  const uint16_t* from;  // null: there are none
  uint16_t* to;
  int rows, taps, columns;

  __device__ void pad() const {
    for (int i = static_cast<int>(threadIdx.x); from && i < rows * columns; i += kBlock)
      to[i] = i % columns < taps ? from[i / columns * taps + i % columns] : uint16_t{0};
  }
};

// The first block pads the weights. A thread writes the same 8 columns of one output pixel after the other, so that it
// finds their taps once. Half types are moved, not read: 16 bits are 16 bits.
__global__ void __launch_bounds__(kBlock)
    im2col_kernel(Geometry g, const uint16_t* x, uint16_t* columns, Weights weights) {
  if (blockIdx.x == 0) weights.pad();
  constexpr int kOutside = 1 << 20;  // a tap that no image reaches: the columns beyond the taps are 0
  const int at_once = kBlock / g.chunks, chunk = static_cast<int>(threadIdx.x) % g.chunks;
  const int mine = static_cast<int>(threadIdx.x) / g.chunks;  // pixel of the block
  if (mine >= at_once) return;
  int dy[8], dx[8], offset[8];
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const int k = chunk * 8 + e;
    const int row = k / g.in / g.kw, column = k / g.in % g.kw;
    const bool real = row < g.kh;
    dy[e] = real ? row * g.dilation : kOutside;
    dx[e] = column * g.dilation;
    offset[e] = real ? (dy[e] * g.w + dx[e]) * g.in + k % g.in : 0;
  }
  for (int64_t pixel = int64_t{blockIdx.x} * at_once + mine; pixel < g.pixels; pixel += int64_t{gridDim.x} * at_once) {
    const int64_t line = g.by_ow(pixel), n = g.by_oh(line);
    const int top = static_cast<int>(line - n * g.oh) * g.stride - g.padding;
    const int left = static_cast<int>(pixel - line * g.ow) * g.stride - g.padding;
    const uint16_t* corner = x + ((n * g.h + top) * g.w + left) * g.in;
    Pack<uint16_t> out;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const bool inside = static_cast<unsigned>(top + dy[e]) < static_cast<unsigned>(g.h) &&
                          static_cast<unsigned>(left + dx[e]) < static_cast<unsigned>(g.w);
      out.v[e] = inside ? corner[offset[e]] : uint16_t{0};
    }
    *reinterpret_cast<Pack<uint16_t>*>(columns + (pixel * g.chunks + chunk) * 8) = out;
  }
}
}  // namespace

int64_t im2col_width(const Conv2dShape& s) {
  const int64_t taps = s.taps() * s.in, columns = (taps + 7) / 8 * 8;
  return s.in < 8 && !s.pointwise() && columns <= kMostTaps ? columns : 0;
}

void im2col_cuda(Context& ctx, const Conv2dShape& s, const Tensor& x, const Tensor& columns, const Tensor& weight,
                 const Tensor& wide) {
  const auto i = [](int64_t v) { return static_cast<int>(v); };
  const Geometry g{i(s.h),        i(s.w),       i(s.in),
                   i(s.stride),   i(s.padding), i(s.dilation),
                   i(s.kh),       i(s.kw),      i(columns.shape().back() / 8),
                   i(s.ow),       i(s.oh),      s.n * s.oh * s.ow,
                   Divider(s.ow), Divider(s.oh)};
  const Weights weights{static_cast<const uint16_t*>(weight.data()), static_cast<uint16_t*>(wide.data()), i(s.out),
                        i(s.taps() * s.in), i(columns.shape().back())};
  im2col_kernel<<<grid_for(ctx.cuda(), columns.numel() / 8), kBlock, 0, ctx.cuda().stream()>>>(
      g, static_cast<const uint16_t*>(x.data()), static_cast<uint16_t*>(columns.data()), weights);
  HT_LAUNCHED("im2col");
}

}  // namespace ht
