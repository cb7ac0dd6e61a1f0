// Matrix products shared by matmul, linear and conv2d: FP32 accumulation for 16-bit inputs, f64 in double.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"

namespace ht {

// y_i [m, n] = op(a_i) op(b_i) for i < batch; all contiguous. a_i is stored [m, k], or [k, m] when transpose_a;
// b_i [k, n], or [n, k] when transpose_b.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  int64_t batch = 1;
  bool beside = false;  // on CUDA: beside the main chain, for gradients of parameters
};
// bias [n], when defined, is added to every row. row_sums [m], when defined, becomes the sums of op(a)'s rows, a being
// [k, m] and alone: the gradient of a bias beside that of its weight. The CPU splits y into tiles that depend on the
// shape only, so the thread count does not change a bit of the result.
void gemm(Context& ctx, const GemmShape& shape, const Tensor& a, const Tensor& b, const Tensor& y,
          const Tensor& bias = {}, const Tensor& row_sums = {});

// y [c] = the sum of x [..., c] over all axes but the last: the gradient of a bias.
void sum_rows(Context& ctx, const Tensor& x, const Tensor& y);

// A row-major matrix with its leading dimension, read transposed when `transposed`.
template <class T>
struct MatrixView {
  const T* data;
  int64_t ld;
  bool transposed = false;
  // The part that starts at row r, column c.
  MatrixView block(int64_t r, int64_t c) const {
    return {data + (transposed ? c * ld + r : r * ld + c), ld, transposed};
  }
};
// The single-threaded building block, for float and double: c [m, n] = a b, or c += a b when `accumulate`.
template <class T>
void gemm_block(int64_t m, int64_t n, int64_t k, MatrixView<T> a, MatrixView<T> b, T* c, int64_t ldc, bool accumulate);

// The CUDA side.
void gemm_cuda(Context& ctx, const GemmShape& shape, const Tensor& a, const Tensor& b, const Tensor& y,
               const Tensor& bias, const Tensor& row_sums);
void sum_rows_cuda(Context& ctx, const Tensor& x, const Tensor& y);

}  // namespace ht
