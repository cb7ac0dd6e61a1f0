// Checked CUDA calls; for .cpp and .cu files of CUDA builds only.
#pragma once

#include <cuda_runtime.h>

#include "core/error.h"

namespace ht {

// Throws Error "<call>: <CUDA's reason> (<file>:<line>)" unless the call succeeded.
inline void cuda_check(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) [[likely]]
    return;
  cudaGetLastError();  // a sticky error stays; a passing one must not fail the next, innocent call
  fail(call, ": ", cudaGetErrorName(status), ": ", cudaGetErrorString(status), " (", file, ":", line, ")");
}

}  // namespace ht

#define HT_CUDA_CALL(call) ::ht::cuda_check((call), #call, __FILE__, __LINE__)
// After a kernel launch: a bad configuration shows here, a fault inside the kernel at the next wait.
#define HT_LAUNCHED(name) ::ht::cuda_check(cudaGetLastError(), "launch of " name, __FILE__, __LINE__)
