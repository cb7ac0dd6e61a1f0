#include "ops/gemm.h"

#include <algorithm>

#include "core/build.h"
#include "core/parallel.h"
#include "ops/cpu_scratch.h"

namespace ht {

namespace {
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Tile sizes from the shape alone: 256, halved until there is work for many threads or a tile gets too small to gain.
struct Tiles {
  int64_t m, n;
  explicit Tiles(const GemmShape& s) : m(std::min<int64_t>(s.m, 256)), n(std::min<int64_t>(s.n, 256)) {
    while (ceil_div(s.m, m) * ceil_div(s.n, n) * s.batch < 16 && std::max(m, n) >= 64 && m * n * s.k > 1 << 18)
      (m > n ? m : n) = ceil_div(std::max(m, n), 16) * 8;
  }
};

// `rows` rows from r0 and `cols` columns from c0 of a, converted to float into `to`.
template <class T>
MatrixView<float> widen_block(const MatrixView<T>& a, int64_t r0, int64_t rows, int64_t c0, int64_t cols, float* to) {
  const MatrixView<T> from = a.block(r0, c0);
  const int64_t stored_rows = a.transposed ? cols : rows, stored_cols = a.transposed ? rows : cols;
  widen(from.data, a.ld, stored_rows, stored_cols, to, stored_cols);
  return {to, stored_cols, a.transposed};
}

template <class T>
void gemm_cpu(const GemmShape& s, const T* a, const T* b, T* y, const T* bias) {
  using A = acc_t<T>;
  constexpr bool widens = sizeof(T) == 2;
  constexpr int64_t kDepth = 512;  // of a widened block
  if (s.m == 0 || s.n == 0) return;
  const Tiles tile(s);
  const int64_t rows = ceil_div(s.m, tile.m), cols = ceil_div(s.n, tile.n), depth = std::clamp<int64_t>(s.k, 1, kDepth);
  const int64_t scratch = tile.m * depth + depth * tile.n + tile.m * tile.n;
  const int64_t macs = std::max<int64_t>(tile.m * tile.n * s.k, 1);
  const Scratch<A> buffers(widens ? num_threads() * scratch : 0);  // a, b and y of a tile
  parallel_dynamic(rows * cols * s.batch, (1 << 16) / macs, [&](int64_t begin, int64_t end, int slot) {
    A* const wide_a = buffers.data() + slot * scratch;
    A* const wide_b = wide_a + tile.m * depth;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t i = item / (rows * cols), r0 = item / cols % rows * tile.m, c0 = item % cols * tile.n;
      const int64_t m = std::min(tile.m, s.m - r0), n = std::min(tile.n, s.n - c0);
      const MatrixView<T> all_a{a + i * s.m * s.k, s.transpose_a ? s.m : s.k, s.transpose_a};
      const MatrixView<T> all_b{b + i * s.k * s.n, s.transpose_b ? s.k : s.n, s.transpose_b};
      const MatrixView<T> left = all_a.block(r0, 0), right = all_b.block(0, c0);
      T* const out = y + (i * s.m + r0) * s.n + c0;
      A* sum;
      int64_t ld;
      if constexpr (widens)
        sum = wide_b + depth * tile.n, ld = n;
      else
        sum = out, ld = s.n;
      if (bias) {
        for (int64_t r = 0; r < m; ++r) widen(bias + c0, 0, 1, n, sum + r * ld, 0);
      }
      if constexpr (widens) {
        for (int64_t k0 = 0; k0 == 0 || k0 < s.k; k0 += depth) {
          const int64_t k = std::min(depth, s.k - k0);
          gemm_block(m, n, k, widen_block(left, 0, m, k0, k, wide_a), widen_block(right, k0, k, 0, n, wide_b), sum, ld,
                     bias || k0 > 0);
        }
        narrow(sum, ld, m, n, out, s.n);
      } else {
        gemm_block(m, n, s.k, left, right, sum, ld, bias != nullptr);
      }
    }
  });
}

// Partial sums over at most 64 parts of the rows, added in order: the same bits for any thread count.
template <class T>
void sum_rows_cpu(const T* x, int64_t rows, int64_t cols, T* y) {
  using A = acc_t<T>;
  if (cols == 0) return;
  const int64_t parts = std::clamp<int64_t>(rows / 64, 1, 64);
  const Scratch<A> partial(parts * cols);
  parallel_for(parts, std::max<int64_t>((1 << 15) * parts / std::max<int64_t>(rows * cols, 1), 1),
               [&](int64_t begin, int64_t end) {
                 for (int64_t p = begin; p < end; ++p) {
                   A* const sum = partial.data() + p * cols;
                   std::fill_n(sum, cols, A(0));
                   for (int64_t r = rows * p / parts; r < rows * (p + 1) / parts; ++r)
                     for (int64_t c = 0; c < cols; ++c) sum[c] += static_cast<A>(x[r * cols + c]);
                 }
               });
  for (int64_t p = 1; p < parts; ++p)
    for (int64_t c = 0; c < cols; ++c) partial.data()[c] += partial.data()[p * cols + c];
  for (int64_t c = 0; c < cols; ++c) y[c] = static_cast<T>(partial.data()[c]);
}
}  // namespace

void gemm(Context& ctx, const GemmShape& shape, const Tensor& a, const Tensor& b, const Tensor& y, const Tensor& bias,
          const Tensor& row_sums) {
  if constexpr (kCudaBuild) {
    if (ctx.is_cuda()) return gemm_cuda(ctx, shape, a, b, y, bias, row_sums);
  }
  dispatch_floating(y.dtype(), "gemm", [&]<class T>() {
    gemm_cpu(shape, a.data<T>(), b.data<T>(), y.data<T>(), bias ? bias.data<T>() : nullptr);
  });
  if (row_sums) sum_rows(ctx, a, row_sums);
}

void sum_rows(Context& ctx, const Tensor& x, const Tensor& y) {
  if constexpr (kCudaBuild) {
    if (ctx.is_cuda()) return sum_rows_cuda(ctx, x, y);
  }
  const int64_t cols = y.numel();
  dispatch_floating(y.dtype(), "sum_rows",
                    [&]<class T>() { sum_rows_cpu(x.data<T>(), cols ? x.numel() / cols : 0, cols, y.data<T>()); });
}

}  // namespace ht
