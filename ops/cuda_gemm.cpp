// The CUDA side of ops/gemm.h: shapes become cuBLASLt problems.
#include "core/alignment.h"
#include "core/cublaslt_gemm.h"
#include "ops/gemm.h"
#include "ops/pad_channels.h"

namespace ht {

void gemm_cuda(Context& ctx, const GemmShape& s, const Tensor& a, const Tensor& b, const Tensor& y, const Tensor& bias,
               const Tensor& row_sums) {
  const auto sums = [&] {
    if (row_sums) sum_rows_cuda(ctx, a, row_sums);
  };
  if (y.numel() == 0) return sums();
  if (s.k == 0) {  // an empty sum
    y.zero_();
    if (bias.defined()) add_bias_cuda(ctx, bias, y);
    return sums();
  }
  const Tensor first = aligned(a), second = aligned(b), offset = bias.defined() ? aligned(bias) : bias;
  const GemmProblem problem{.m = s.m,
                            .n = s.n,
                            .k = s.k,
                            .batch = s.batch,
                            .trans_a = s.transpose_a,
                            .trans_b = s.transpose_b,
                            .dtype = a.dtype(),
                            .out = y.dtype(),
                            .stride_a = s.m * s.k,
                            .stride_b = s.k * s.n,
                            .stride_c = s.m * s.n,
                            .bias = bias.defined(),
                            .row_sums = row_sums.defined()};
  const GemmOperands at{first.data(), second.data(), offset.data(), y.data(), row_sums.data()};
  const GemmCall product = cublaslt_gemm(ctx, problem, at, sums);
  CudaContext& cuda = ctx.cuda();
  // Row sums by a kernel of their own have the product beside them.
  if (s.beside || (row_sums && !product.makes_row_sums))
    cuda.beside({first, second, y, row_sums ? row_sums : y}, product.run);
  else
    product.run(cuda.main);
  if (!product.makes_row_sums) sums();
}

}  // namespace ht
