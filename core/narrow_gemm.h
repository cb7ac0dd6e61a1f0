// The three products of a linear layer with few outputs, as a classifier's head is.
#pragma once

#include "core/cublaslt_gemm.h"

namespace ht {

inline constexpr int kNarrowest = 16;  // outputs, at most

// Whether narrow_gemm does the problem: C = A B^T with few columns, A B with a short k or A^T B with few rows; one
// product in half or FP32, no row sums, its long sides whole 16 bytes, 16-byte aligned operands.
bool narrow_gemm_takes(const GemmProblem& problem, const GemmOperands& at);
void narrow_gemm(const CudaContext& cuda, const CudaLane& lane, const GemmProblem& problem, const GemmOperands& at);

}  // namespace ht
