// Matrix products on CUDA through cuBLASLt or, where that is faster, a kernel of ours; row-major like all our tensors.
#pragma once

#include <cstdint>
#include <functional>

#include "core/context.h"
#include "core/cuda_context.h"
#include "core/dtype.h"

namespace ht {

// C[b] = op(A[b]) op(B[b]) (+ bias along n) (then ReLU), b in [0, batch). A is [m, k], or [k, m] when trans_a; B is [k,
// n], or [n, k] when trans_b. All of `dtype`, except C of `out`; 16-bit products accumulate in FP32.
struct GemmProblem {
  int64_t m = 0, n = 0, k = 0, batch = 1;
  bool trans_a = false, trans_b = false;
  DType dtype = DType::f32;
  DType out = DType::f32;
  int64_t stride_a = 0, stride_b = 0, stride_c = 0;  // elements from one batch to the next; 0 repeats
  bool bias = false, relu = false;
  bool row_sums = false;  // wanted too: the sums of op(A)'s rows, [m] of `dtype`
};
struct GemmOperands {
  const void *a = nullptr, *b = nullptr, *bias = nullptr;  // bias: [n] of dtype `out`, or null
  void *c = nullptr, *row_sums = nullptr;
};

// A problem with its kernel chosen.
struct GemmCall {
  std::function<void(CudaLane&)> run;  // queues the product on a lane of the context, once or more
  bool makes_row_sums = false;         // the wanted ones, too
};
// The first call of a problem times the heuristics' algorithms and small_gemm (tune mode) and keeps the fastest, on
// disk too. `separately` queues the row sums on the main lane: its time counts for kernels that do not make them.
// Throws Error when no algorithm takes the problem.
GemmCall cublaslt_gemm(Context& ctx, const GemmProblem& problem, const GemmOperands& at,
                       const std::function<void()>& separately);

}  // namespace ht
