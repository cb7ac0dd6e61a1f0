// The CUDA side of ops/gemm.h: shapes become cuBLASLt problems.
#include "core/alignment.h"
#include "core/cublaslt_gemm.h"
#include "ops/gemm.h"
#include "ops/pad_channels.h"

namespace ht {

void gemm_cuda(Context& ctx, const GemmShape& s, const Tensor& a, const Tensor& b, const Tensor& y,
               const Tensor& bias) {
  if (y.numel() == 0) return;
  if (s.k == 0) {  // an empty sum
    y.zero_();
    if (bias.defined()) add_bias_cuda(ctx, bias, y);
    return;
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
                            .bias = bias.defined()};
  const auto run = [&](CudaLane& lane) {
    cublaslt_gemm(ctx, lane, problem, first.data(), second.data(), offset.data(), y.data());
  };
  CudaContext& cuda = ctx.cuda();
  s.beside ? cuda.beside({first, second, y}, run) : run(cuda.main);
}

}  // namespace ht
