#include "core/cuda_kernels.cuh"
#include "ops/conv2d_kernels.h"

namespace ht {

namespace {
constexpr int kMostTaps = 64;  // products of an output pixel

struct Geometry {
  int64_t h, w, in, stride, padding, dilation, kh, kw;
  int columns;  // with the padding
  Divider by_chunks, by_ow, by_oh;
  int64_t chunks, ow, oh, total;  // chunks of 8 columns: of a pixel, and in all
};

// A thread writes 8 columns of an output pixel, 16 bytes. Half types only are moved, not read: 16 bits are 16 bits.
__global__ void __launch_bounds__(kBlock) im2col_kernel(Geometry g, const uint16_t* x, uint16_t* columns) {
  __shared__ struct {
    int dy, dx, offset;  // of the input pixel and of the element, from the window's corner
  } taps[kMostTaps];
  for (int k = static_cast<int>(threadIdx.x); k < g.columns; k += kBlock) {
    const int in = static_cast<int>(g.in), kw = static_cast<int>(g.kw);
    const int dy = k / in / kw * static_cast<int>(g.dilation), dx = k / in % kw * static_cast<int>(g.dilation);
    const bool real = k < static_cast<int>(g.kh) * kw * in;
    taps[k] = {real ? dy : INT_MAX / 2, dx, (dy * static_cast<int>(g.w) + dx) * in + k % in};
  }
  __syncthreads();
  HT_GRID_STRIDE(i, g.total) {
    const int64_t pixel = g.by_chunks(i), line = g.by_ow(pixel), n = g.by_oh(line);
    const int first = static_cast<int>(i - pixel * g.chunks) * 8;
    const int64_t oy = line - n * g.oh, ox = pixel - line * g.ow;
    const int64_t y = oy * g.stride - g.padding, left = ox * g.stride - g.padding;
    const uint16_t* corner = x + ((n * g.h + y) * g.w + left) * g.in;
    Pack<uint16_t> out;
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const auto tap = taps[first + e];
      const bool inside = static_cast<uint64_t>(y + tap.dy) < static_cast<uint64_t>(g.h) &&
                          static_cast<uint64_t>(left + tap.dx) < static_cast<uint64_t>(g.w);
      out.v[e] = inside ? corner[tap.offset] : uint16_t{0};
    }
    *reinterpret_cast<Pack<uint16_t>*>(columns + i * 8) = out;
  }
}
}  // namespace

int64_t im2col_width(const Conv2dShape& s) {
  const int64_t taps = s.taps() * s.in, columns = (taps + 7) / 8 * 8;
  return s.in < 8 && !s.pointwise() && columns <= kMostTaps ? columns : 0;
}

void im2col_cuda(Context& ctx, const Conv2dShape& s, const Tensor& x, const Tensor& columns) {
  const int64_t chunks = columns.shape().back() / 8, total = columns.numel() / 8;
  const Geometry g{s.h,
                   s.w,
                   s.in,
                   s.stride,
                   s.padding,
                   s.dilation,
                   s.kh,
                   s.kw,
                   static_cast<int>(columns.shape().back()),
                   Divider(chunks),
                   Divider(s.ow),
                   Divider(s.oh),
                   chunks,
                   s.ow,
                   s.oh,
                   total};
  im2col_kernel<<<grid_for(ctx.cuda(), total), kBlock, 0, ctx.cuda().stream()>>>(
      g, static_cast<const uint16_t*>(x.data()), static_cast<uint16_t*>(columns.data()));
  HT_LAUNCHED("im2col");
}

}  // namespace ht
