// Products so small that a library's kernel spends most of its time on its own beginning and end.
#pragma once

#include <vector>

#include "core/cublaslt_gemm.h"

namespace ht {

struct SmallGemmPlan {
  int tile = 0;    // which of the tiles that there are kernels for in the problem's dtype
  int blocks = 0;  // of a cluster, which divide k; 0: no plan
};

// The ways in which small_gemm can do the problem, none where it does not take it: one product without ReLU in FP32, or
// in half with a half or FP32 result, on a GPU with clusters; sizes multiples of 4 (half: 8), k up to 4096, no more
// blocks than run at once, 16-byte aligned operands.
std::vector<SmallGemmPlan> small_gemm_plans(const CudaContext& cuda, const GemmProblem& problem,
                                            const GemmOperands& at);

// Queues the product on `lane`, and the row sums if the problem has them, by FP32 sums in an order that the shape and
// the plan decide. Half is multiplied on tensor cores.
void small_gemm(const CudaContext& cuda, const CudaLane& lane, const GemmProblem& problem, SmallGemmPlan plan,
                const GemmOperands& at);

}  // namespace ht
