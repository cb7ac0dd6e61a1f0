// What every kernel file uses: conversions that compile to one instruction, 16-byte accesses, launch shapes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "core/alignment.h"
#include "core/context.h"
#include "core/cuda_check.h"
#include "core/cuda_context.h"
#include "core/tensor.h"

namespace ht {

// Storage -> accumulation type and back, by the hardware's conversions (same rounding as ours: nearest even).
template <class T>
__device__ __forceinline__ acc_t<T> load_as(T v) {
  if constexpr (std::is_same_v<T, Half>) {
    return __half2float(__ushort_as_half(v.bits));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return __bfloat162float(__ushort_as_bfloat16(v.bits));
  } else {
    return v;
  }
}

template <class T, class A>
__device__ __forceinline__ T store_as(A v) {
  if constexpr (std::is_same_v<T, Half>) {
    Half h;
    h.bits = __half_as_ushort(__float2half_rn(static_cast<float>(v)));
    return h;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    BFloat16 b;
    b.bits = __bfloat16_as_ushort(__float2bfloat16_rn(static_cast<float>(v)));
    return b;
  } else {
    return static_cast<T>(v);
  }
}

// Up to 16 bytes of T moved at once.
template <class T, int N = 16 / sizeof(T)>
struct alignas(sizeof(T) * N) Pack {
  static constexpr int size = N;
  T v[N];
};

// Quotients by a number that the host knows: a multiplication where the device would divide. For n * d below 2^63.
struct Divider {
  uint64_t magic = 0;

  Divider() = default;
  explicit Divider(int64_t d) : magic((uint64_t{1} << 63) / static_cast<uint64_t>(d) + 1) {}
  __device__ __forceinline__ int64_t operator()(int64_t n) const {
    return static_cast<int64_t>(__umul64hi(static_cast<uint64_t>(n) << 1, magic));
  }
};

constexpr int kBlock = 256;

// Blocks for n items, `per_thread` each, capped at `waves` full waves: the kernel strides over the rest.
inline unsigned grid_for(const CudaContext& cuda, int64_t n, int per_thread = 1, int blocks_per_sm = 8) {
  const int64_t need = (n + int64_t{kBlock} * per_thread - 1) / (int64_t{kBlock} * per_thread);
  return static_cast<unsigned>(std::clamp<int64_t>(need, 1, int64_t{cuda.sm_count} * blocks_per_sm));
}

struct LaunchShape {
  dim3 grid, block;
  unsigned cluster = 1;         // blocks, along x; more than 1 needs compute capability 9.0
  size_t shared_bytes = 0;      // chosen at launch
  CudaStream stream = nullptr;  // of the side lane, where no kernel starts early; null: the main one
};

// A launch whose blocks may take their places, and run up to wait_for_previous(), before the kernel ahead on the stream
// has ended (programmatic dependent launch). That one lets them by let_next_start(), at best when all of it is running.
template <class... P, class... A>
void launch_early(const CudaContext& cuda, void (*kernel)(P...), const LaunchShape& shape, A&&... args) {
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  const bool on_main = !shape.stream || shape.stream == cuda.stream();
  config.stream = on_main ? cuda.stream() : shape.stream;
  config.attrs = attributes;
  if (shape.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {shape.cluster, 1, 1};
  }
  if (on_main && cuda.kernels >= 90) {  // older code has no wait_for_previous()
    cudaLaunchAttribute& early = attributes[config.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  constexpr size_t kWithoutAsking = 32 << 10;  // of 48 KiB that the kernel's own variables are part of
  if (shape.shared_bytes > kWithoutAsking)
    HT_CUDA_CALL(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(shape.shared_bytes)));
  HT_CUDA_CALL(cudaLaunchKernelEx(&config, kernel, P(args)...));
}
template <class... P, class... A>
void launch_early(const CudaContext& cuda, void (*kernel)(P...), dim3 grid, dim3 block, A&&... args) {
  launch_early(cuda, kernel, LaunchShape{grid, block}, std::forward<A>(args)...);
}
__device__ __forceinline__ void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}
// Every thread of the later kernel calls it before it reads what the earlier one wrote, or writes what that one reads.
__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// Whether this block is the last of its grid to come here; it then sees what the others wrote before. Called once, by
// whole blocks; `ticket` counts them and is 0 before and after. One thread's fences order what the barriers order with
// it: a fence of every thread would wait for all of their loads, too.
__device__ __forceinline__ bool is_last_block(unsigned* ticket) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    const unsigned blocks = gridDim.x * gridDim.y;
    __threadfence();
    last = atomicInc(ticket, blocks - 1) == blocks - 1;
    __threadfence();
  }
  __syncthreads();
  return last;
}

#define HT_GRID_STRIDE(i, n)                                                    \
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, \
               i##_step = static_cast<int64_t>(gridDim.x) * blockDim.x;         \
       i < (n); i += i##_step)

}  // namespace ht
