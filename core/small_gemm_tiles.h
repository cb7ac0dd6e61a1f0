// What the kernels of small products share: copies into shared memory; on the host, which tiles there are, and in which
// plans they can be used.
#pragma once

#include <tuple>
#include <utility>
#include <vector>

#include "core/cuda_kernels.cuh"
#include "core/small_gemm.h"

namespace ht {

// The products in f16 and bf16 among small_gemm's.
std::vector<SmallGemmPlan> small_half_gemm_plans(const CudaContext& cuda, const GemmProblem& problem);
void small_half_gemm(const CudaContext& cuda, const CudaLane& lane, const GemmProblem& problem, SmallGemmPlan plan,
                     const GemmOperands& at);

namespace small_gemms {
constexpr int kMost = 8;  // blocks of a cluster

// 16 bytes on their way from memory into shared memory; zeros where they are not `there`.
[[maybe_unused]] __device__ __forceinline__ void copy16(void* to, const void* from, bool there) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(there ? 16 : 0)
      : "memory");
}
// What a thread copied since it last did this is a group; groups arrive in order.
[[maybe_unused]] __device__ __forceinline__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all of this thread's groups but the kLeft newest are there.
template <int kLeft>
[[maybe_unused]] __device__ __forceinline__ void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

constexpr int64_t up(int64_t n, int64_t d) { return (n + d - 1) / d; }

// Calls f.operator()<T>() for tile number `tile` of a tuple of them.
template <class Tiles, class F, size_t... I>
void with_tile(int tile, F&& f, std::index_sequence<I...>) {
  ((tile == static_cast<int>(I) ? f.template operator()<std::tuple_element_t<I, Tiles>>() : void()), ...);
}
template <class Tiles, class F>
void with_tile(int tile, F&& f) {
  with_tile<Tiles>(tile, std::forward<F>(f), std::make_index_sequence<std::tuple_size_v<Tiles>>());
}

// Every tile, by one block and, when `divides_k`, by clusters whose blocks have work: as long as all run at once.
template <class Tiles>
std::vector<SmallGemmPlan> plans_of(const CudaContext& cuda, const GemmProblem& p, bool divides_k) {
  std::vector<SmallGemmPlan> plans;
  for (int tile = 0; tile < static_cast<int>(std::tuple_size_v<Tiles>); ++tile) {
    with_tile<Tiles>(tile, [&]<class T>() {
      const int64_t tiles = up(p.m, T::kRows) * up(p.n, T::kColumns);
      for (int blocks = 1; blocks <= kMost && tiles * blocks <= cuda.sm_count; blocks *= 2)
        if (blocks == 1 || (divides_k && p.k > T::kDepth / 2 * blocks)) plans.push_back({tile, blocks});
    });
  }
  return plans;
}

// Along x the blocks of a cluster, then the tiles of n; along y the tiles of m.
template <class T>
LaunchShape shape_of(const GemmProblem& p, SmallGemmPlan plan, size_t shared_bytes, const CudaLane& lane) {
  return {
      .grid = dim3(static_cast<unsigned>(up(p.n, T::kColumns) * plan.blocks), static_cast<unsigned>(up(p.m, T::kRows))),
      .block = kBlock,
      .cluster = static_cast<unsigned>(plan.blocks),
      .shared_bytes = shared_bytes,
      .stream = lane.stream};
}

// Calls f.operator()<trans_a, trans_b>().
template <class F>
void with_layout(const GemmProblem& p, F&& f) {
  if (p.trans_a)
    p.trans_b ? f.template operator()<true, true>() : f.template operator()<true, false>();
  else
    p.trans_b ? f.template operator()<false, true>() : f.template operator()<false, false>();
}
}  // namespace small_gemms

}  // namespace ht
