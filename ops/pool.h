// What the windowed pools share: geometry and its checks.
#pragma once

#include <algorithm>
#include <string_view>

#include "ops/ops.h"

namespace ht {

struct Pool2d {
  int64_t n, h, w, c, oh, ow, kernel, stride, padding;

  // The common case: windows of 2x2 that touch but don't overlap, all of them inside.
  HT_HD bool halves() const { return kernel == 2 && stride == 2 && padding == 0; }
  // Rows or columns [begin, end) of an axis of `size` that window `o` covers; never empty.
  struct Range {
    int64_t begin, end;
  };
  HT_HD Range window(int64_t o, int64_t size) const {
    const int64_t at = o * stride - padding;
    return {std::max<int64_t>(at, 0), std::min(at + kernel, size)};
  }
  // Windows [begin, end) out of `count` that cover row or column `i`; may be empty.
  HT_HD Range windows_over(int64_t i, int64_t count) const {
    const int64_t first = i + padding - kernel + 1;
    return {first > 0 ? (first + stride - 1) / stride : 0, std::min((i + padding) / stride + 1, count)};
  }
  Shape out_shape() const { return {n, oh, ow, c}; }
  // Rows that are worth a thread.
  static int64_t grain(int64_t work_per_row) {
    return std::max<int64_t>(1, (1 << 14) / std::max<int64_t>(1, work_per_row));
  }
};

inline constexpr int64_t kMaxKernel = 1 << 20;  // keeps all index sums far from overflow

// Throws Error, naming the op, on a bad rank, dtype, option, or a window that does not fit.
inline Pool2d pool2d_geometry(std::string_view op, const Tensor& x, const Pool2dOptions& o) {
  const Named nx{"x", x};
  check(x.rank() == 4, op, ": x must be [n, h, w, c], not of rank ", x.rank(), " (", nx, ")");
  check(is_floating(x.dtype()), op, ": x must be floating (", nx, ")");
  check(o.kernel >= 1 && o.kernel <= kMaxKernel, op, ": kernel ", o.kernel, " must be in [1, ", kMaxKernel, "] (", nx,
        ")");
  check(o.stride >= 0 && o.stride <= kMaxKernel, op, ": stride ", o.stride, " must be in [1, ", kMaxKernel,
        "], or 0 for the kernel (", nx, ")");
  check(o.padding >= 0 && o.padding <= o.kernel / 2, op, ": padding ", o.padding,
        " must be in [0, kernel / 2 = ", o.kernel / 2, "] (", nx, ")");
  Pool2d g{x.dim(0), x.dim(1), x.dim(2), x.dim(3), 0, 0, o.kernel, o.stride ? o.stride : o.kernel, o.padding};
  check(g.h > 0 && g.w > 0, op, ": x has no pixels (", nx, ")");
  check(g.kernel <= g.h + 2 * g.padding && g.kernel <= g.w + 2 * g.padding, op, ": the window ", g.kernel, "x",
        g.kernel, " is larger than the padded input ", g.h + 2 * g.padding, "x", g.w + 2 * g.padding, " (", nx, ")");
  g.oh = (g.h + 2 * g.padding - g.kernel) / g.stride + 1;
  g.ow = (g.w + 2 * g.padding - g.kernel) / g.stride + 1;
  return g;
}

// The CUDA launchers (ops/max_pool2d.cu, ops/avg_pool2d.cu, ops/global_avg_pool2d.cu).
void max_pool2d_forward_cuda(Context& ctx, const Pool2d& g, const Tensor& x, const Tensor& y);
void max_pool2d_backward_cuda(Context& ctx, const Pool2d& g, const Tensor& x, const Tensor& dy, const Tensor& dx);
void avg_pool2d_forward_cuda(Context& ctx, const Pool2d& g, const Tensor& x, const Tensor& y);
void avg_pool2d_backward_cuda(Context& ctx, const Pool2d& g, const Tensor& dy, const Tensor& dx);
void global_avg_pool2d_forward_cuda(Context& ctx, const Tensor& x, const Tensor& y);
void global_avg_pool2d_backward_cuda(Context& ctx, const Tensor& dy, const Tensor& dx);

}  // namespace ht
