// A tile of C to a cluster of blocks, each with its part of k; in a block the warps divide that part again, and each
// warp has a tile of 32 rows in its registers, 8 of them a thread. The warps' sums meet in the block's shared memory,
// the blocks' through the cluster's: one kernel, where a library takes two and finds work for a tenth of the GPU.
#include <cooperative_groups.h>

#include "core/small_gemm_tiles.h"

namespace ht {

using namespace small_gemms;

namespace {
constexpr int kWarps = kBlock / 32;

// A slab is what a block has of k at once, kEach of it a warp. Rows in shared memory are a float4 longer, so that the
// stores of a transposed read spread over the banks.
template <int kRows_, int kColumns_, int kEach_>
struct Tile {
  static constexpr int kRows = kRows_, kColumns = kColumns_, kEach = kEach_;
  static constexpr int kGroups = kWarps * 32 / kRows;  // of warps that share the tile
  static constexpr int kDepth = kEach * kGroups;       // of a slab
  static constexpr int kLdA = kRows + 4, kLdB = kColumns + 4;
  static constexpr int kQuads = kRows * kColumns / 4;  // of the tile
  static constexpr size_t kBytes =
      sizeof(float) * static_cast<size_t>(std::max(kDepth * (kLdA + kLdB), kGroups* kQuads * 4));
};
using Tiles = std::tuple<Tile<32, 32, 32>, Tile<32, 64, 16>, Tile<64, 64, 16>>;

struct Sizes {
  int m, n, k, depth;  // depth: of k, a block's share
};

[[maybe_unused]] __device__ __forceinline__ float4 operator+(const float4& a, const float4& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// Rows [row, row + kRows) of an operand at k in [begin, end), zeros where there is nothing, on their way from memory
// into a slab [kDepth, kLd]. The operand is stored [rows, k] when kAlongK, else [k, rows].
template <int kRows, int kDepth, int kLd, bool kAlongK>
struct Part {
  static constexpr int kQuads = kRows * kDepth / 4, kEach = kQuads / kBlock;
  static constexpr int kInner = (kAlongK ? kDepth : kRows) / 4;  // quads that are contiguous in memory
  static_assert(kQuads % kBlock == 0);
  float4 quad[kEach];

  // k and row of a quad. Along k, four neighbours read a row's 64 bytes and eight rows make a warp.
  static __device__ __forceinline__ int2 place(int u) {
    const int i = u * kBlock + static_cast<int>(threadIdx.x);
    if constexpr (kAlongK) {
      const int warp = i / 32, lane = i % 32;
      return {(warp % (kInner / 4) * 4 + lane % 4) * 4, warp / (kInner / 4) * 8 + lane / 4};
    }
    return {i / kInner, i % kInner * 4};
  }
  __device__ __forceinline__ void load(const float* from, int rows, int k, int row, int begin, int end) {
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      const int2 at = place(u);
      const bool there = begin + at.x < end && row + at.y < rows;
      const int64_t offset =
          kAlongK ? int64_t{row + at.y} * k + begin + at.x : int64_t{begin + at.x} * rows + row + at.y;
      quad[u] = there ? *reinterpret_cast<const float4*>(from + offset) : float4{};
    }
  }
  __device__ __forceinline__ void put(float* slab) const {
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
      const int2 at = place(u);
      if constexpr (kAlongK) {
        const float v[4] = {quad[u].x, quad[u].y, quad[u].z, quad[u].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) slab[(at.x + j) * kLd + at.y] = v[j];
      } else {
        *reinterpret_cast<float4*>(slab + at.x * kLd + at.y) = quad[u];
      }
    }
  }
};

// Row sums, of op(A), only where a cluster is one block.
template <class T, bool kTransA, bool kTransB>
__global__ void __launch_bounds__(kBlock, 1) small_gemm_kernel(Sizes size, int blocks, const float* a, const float* b,
                                                               const float* bias, float* c, float* row_sums) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr int kWide = T::kColumns / 32;  // float4s of a thread's row
  extern __shared__ float4 shared[];
  float *slab_a = reinterpret_cast<float*>(shared), *slab_b = slab_a + T::kDepth * T::kLdA;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int group = warp % T::kGroups, top = warp / T::kGroups * 32 + lane / 8 * 4, left = lane % 8 * 4;
  const int part = static_cast<int>(blockIdx.x) % blocks, row = static_cast<int>(blockIdx.y) * T::kRows,
            column = static_cast<int>(blockIdx.x) / blocks * T::kColumns;
  const int end = min(size.k, (part + 1) * size.depth);
  const bool sums_rows = row_sums && column == 0 && thread < T::kRows;
  Part<T::kRows, T::kDepth, T::kLdA, !kTransA> part_a;
  Part<T::kColumns, T::kDepth, T::kLdB, kTransB> part_b;
  const auto load = [&](int k) {
    part_a.load(a, size.m, size.k, row, k, end);
    part_b.load(b, size.n, size.k, column, k, end);
  };
  // A thread's rows top + {0..3, 16..19}, columns left + {0..3} and, in a wide tile, 32 further.
  float sum[8][kWide * 4] = {}, row_sum = 0;
  let_next_start();
  wait_for_previous();
  int k = part * size.depth;
  load(k);
  for (; k < end; k += T::kDepth) {
    part_a.put(slab_a);
    part_b.put(slab_b);
    __syncthreads();
    if (k + T::kDepth < end) load(k + T::kDepth);  // on its way meanwhile
#pragma unroll 4
    for (int i = group * T::kEach; i < (group + 1) * T::kEach; ++i) {
      float x[8], y[kWide * 4];
#pragma unroll
      for (int h = 0; h < 2; ++h)
        *reinterpret_cast<float4*>(x + h * 4) = *reinterpret_cast<const float4*>(slab_a + i * T::kLdA + top + h * 16);
#pragma unroll
      for (int h = 0; h < kWide; ++h)
        *reinterpret_cast<float4*>(y + h * 4) = *reinterpret_cast<const float4*>(slab_b + i * T::kLdB + left + h * 32);
#pragma unroll
      for (int r = 0; r < 8; ++r)
#pragma unroll
        for (int s = 0; s < kWide * 4; ++s) sum[r][s] += x[r] * y[s];
    }
    if (sums_rows) {  // the slab's first, so that long sums stay exact
      float slab = 0;
#pragma unroll 8
      for (int i = 0; i < T::kDepth; ++i) slab += slab_a[i * T::kLdA + thread];
      row_sum += slab;
    }
    __syncthreads();
  }
  if (sums_rows && row + thread < size.m) row_sums[row + thread] = row_sum;

#pragma unroll
  for (int r = 0; r < 8; ++r)
#pragma unroll
    for (int s = 0; s < kWide; ++s)
      shared[group * T::kQuads + ((top + r / 4 * 16 + r % 4) * T::kColumns + left + s * 32) / 4] = {
          sum[r][s * 4], sum[r][s * 4 + 1], sum[r][s * 4 + 2], sum[r][s * 4 + 3]};
  __syncthreads();
  const auto store = [&](int i, float4 total) {
    const int to_row = row + i / (T::kColumns / 4), to_column = column + i % (T::kColumns / 4) * 4;
    if (to_row >= size.m || to_column >= size.n) return;
    if (bias) total = total + *reinterpret_cast<const float4*>(bias + to_column);
    *reinterpret_cast<float4*>(c + int64_t{to_row} * size.n + to_column) = total;
  };
#pragma unroll
  for (int i = thread; i < T::kQuads; i += kBlock) {
    float4 total = shared[i];
#pragma unroll
    for (int g = 1; g < T::kGroups; ++g) total = total + shared[g * T::kQuads + i];
    if (blocks == 1)
      store(i, total);
    else
      shared[i] = total;
  }
  if (blocks == 1) return;
  auto cluster = cooperative_groups::this_cluster();
  cluster.sync();
  const int share = T::kQuads / blocks;  // of the tile, that this block writes
  for (int i = part * share + thread; i < (part + 1) * share; i += kBlock) {
    float4 total[kMost];
#pragma unroll
    for (int other = 0; other < kMost; ++other)
      if (other < blocks) total[other] = cluster.map_shared_rank(shared, other)[i];
#pragma unroll
    for (int other = 1; other < kMost; ++other)
      if (other < blocks) total[0] = total[0] + total[other];
    store(i, total[0]);
  }
  cluster.sync();  // the others have read this block's sums
#endif
}

}  // namespace

std::vector<SmallGemmPlan> small_gemm_plans(const CudaContext& cuda, const GemmProblem& p, const GemmOperands& at) {
  constexpr int64_t kLongest = 1 << 12;  // k; beyond it a library's pipeline wins
  if (cuda.kernels < 90 || p.batch != 1 || p.relu || p.k > kLongest || !aligned16(at.a) || !aligned16(at.b) ||
      !aligned16(at.bias) || !aligned16(at.c))
    return {};
  if (is_half(p.dtype)) return small_half_gemm_plans(cuda, p);
  if (p.dtype != DType::f32 || p.out != DType::f32 || p.m % 4 || p.n % 4 || p.k % 4) return {};
  return plans_of<Tiles>(cuda, p, !p.row_sums);
}

void small_gemm(const CudaContext& cuda, const CudaLane& lane, const GemmProblem& p, SmallGemmPlan plan,
                const GemmOperands& at) {
  if (is_half(p.dtype)) return small_half_gemm(cuda, lane, p, plan, at);
  const Sizes sizes{static_cast<int>(p.m), static_cast<int>(p.n), static_cast<int>(p.k),
                    static_cast<int>(up(up(p.k, plan.blocks), 4) * 4)};
  with_tile<Tiles>(plan.tile, [&]<class T>() {
    with_layout(p, [&]<bool kTransA, bool kTransB>() {
      launch_early(cuda, small_gemm_kernel<T, kTransA, kTransB>, shape_of<T>(p, plan, T::kBytes, lane), sizes,
                   plan.blocks, static_cast<const float*>(at.a), static_cast<const float*>(at.b),
                   static_cast<const float*>(at.bias), static_cast<float*>(at.c), static_cast<float*>(at.row_sums));
    });
  });
}

}  // namespace ht
