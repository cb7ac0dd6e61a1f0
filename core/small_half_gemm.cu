// Small products in f16 and bf16 on the tensor cores. A tile of C to a cluster of blocks, each with its part of k, all
// of which it asks for at once where four slabs hold it. Every warp sends its sums to the block that writes those rows:
// a store into another block's shared memory, unlike a load from there, is not waited for.
#include <cooperative_groups.h>

#include "core/small_gemm_tiles.h"

namespace ht {

using namespace small_gemms;

namespace {
constexpr int kWarps = kBlock / 32;
constexpr int kStages = 4;      // slabs in flight
constexpr int kSlabDepth = 64;  // of k

// A warp has 16 rows and kWide * 8 columns.
template <int kRows_, int kColumns_, int kWide_>
struct Tile {
  static constexpr int kRows = kRows_, kColumns = kColumns_, kWide = kWide_, kDepth = kSlabDepth;
  static constexpr int kAcross = kColumns / (kWide * 8);           // warps side by side
  static constexpr int kGroups = kWarps / (kRows / 16 * kAcross);  // of warps, which divide a slab's k
  // A line of sums in shared memory: a row of the tile, then the sum of op(A)'s. Being 8 longer than a multiple of 32,
  // 8 lines spread a warp's stores of two floats over all banks.
  static constexpr int kLd = kColumns + 8, kSums = kGroups * kRows * kLd;
  static_assert(kWide % 2 == 0 && kGroups * kRows * kAcross == kWarps * 16);
};
using Tiles = std::tuple<Tile<32, 32, 2>, Tile<64, 32, 2>, Tile<32, 64, 2>, Tile<64, 64, 4>>;

struct Sizes {
  int m, n, k, depth, blocks;  // depth: of k, a block's share
  bool wide;                   // C and the bias are FP32
};

// Four 8x8 matrices: lane 8 j + i gives the address of matrix j's row i, and receives of each matrix row lane / 4,
// columns lane % 4 * 2 + {0, 1}; kTransposed: of its transposed one.
template <bool kTransposed>
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], const void* from) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(from));
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}

// c[16, 8] += a[16, 16] b[16, 8]. With g = lane / 4 and t = lane % 4 * 2, a lane's share is of a: rows g + {0, 8, 0, 8}
// at k = t + {0, 0, 8, 8} and the next; of b: column g at k = t + {0, 8} and the next; of c: row g at columns t and
// t + 1, then row g + 8.
template <class T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, Half>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// kRows rows of an operand, kSlabDepth of k, in shared memory as in memory: [rows, k] when kAlongK, else [k, rows].
// Lines are 16 bytes longer than a multiple of 32, so that ldmatrix's 8 rows fall into different banks.
template <int kRows, bool kAlongK>
struct Slab {
  static constexpr int kLine = kAlongK ? kSlabDepth : kRows, kLd = kLine + 8;
  static constexpr int kHalves = kRows * kSlabDepth / kLine * kLd;
  static_assert(kRows * kSlabDepth % (8 * kBlock) == 0);

  // Sends for rows from `row` on at k in [begin, end), zeros where there is nothing.
  template <class T>
  static __device__ __forceinline__ void load(T* slab, const T* from, int rows, int k, int row, int begin, int end) {
#pragma unroll
    for (int u = 0; u < kRows * kSlabDepth / (8 * kBlock); ++u) {
      const int i = u * kBlock + static_cast<int>(threadIdx.x), line = i / (kLine / 8), inside = i % (kLine / 8) * 8;
      const int at_row = row + (kAlongK ? line : inside), at_k = begin + (kAlongK ? inside : line);
      const bool there = at_row < rows && at_k < end;
      const int64_t offset = kAlongK ? int64_t{at_row} * k + at_k : int64_t{at_k} * rows + at_row;
      copy16(slab + line * kLd + inside, there ? from + offset : from, there);
    }
  }
  // Where this lane's row begins of the 8x8 matrix at `row` and k.
  static __device__ __forceinline__ int place(int lane, int row, int k) {
    return kAlongK ? (row + lane % 8) * kLd + k : (k + lane % 8) * kLd + row;
  }
};

// Four numbers of C or a bias.
template <class T>
__device__ __forceinline__ float4 load4(const void* from, int64_t i, bool wide) {
  if (wide) return *reinterpret_cast<const float4*>(static_cast<const float*>(from) + i);
  const auto p = *reinterpret_cast<const Pack<T, 4>*>(static_cast<const T*>(from) + i);
  return {load_as(p.v[0]), load_as(p.v[1]), load_as(p.v[2]), load_as(p.v[3])};
}
template <class T>
__device__ __forceinline__ void store4(void* to, int64_t i, float4 v, bool wide) {
  if (wide)
    *reinterpret_cast<float4*>(static_cast<float*>(to) + i) = v;
  else
    *reinterpret_cast<Pack<T, 4>*>(static_cast<T*>(to) + i) = {store_as<T>(v.x), store_as<T>(v.y), store_as<T>(v.z),
                                                               store_as<T>(v.w)};
}

template <class T, class S, bool kTransA, bool kTransB>
struct Stage {
  using A = Slab<S::kRows, !kTransA>;
  using B = Slab<S::kColumns, kTransB>;
  static constexpr int kHalves = A::kHalves + B::kHalves;
};

template <class T, class S, bool kTransA, bool kTransB>
__global__ void __launch_bounds__(kBlock, 1)
    small_half_gemm_kernel(Sizes size, const T* a, const T* b, const void* bias, void* c, T* row_sums) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using Slabs = Stage<T, S, kTransA, kTransB>;
  constexpr int kQuads = S::kColumns / 4, kEach = kSlabDepth / S::kGroups;
  constexpr uint32_t kOnes = std::is_same_v<T, Half> ? 0x3c003c00 : 0x3f803f80;
  extern __shared__ float4 shared[];
  float* sums = reinterpret_cast<float*>(shared);
  T* stages = reinterpret_cast<T*>(sums + S::kSums);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int group = warp / (kWarps / S::kGroups), left = warp % S::kAcross * (S::kWide * 8),
            top = warp % (kWarps / S::kGroups) / S::kAcross * 16;
  const int blocks = size.blocks, part = static_cast<int>(blockIdx.x) % blocks,
            column = static_cast<int>(blockIdx.x) / blocks * S::kColumns, row = static_cast<int>(blockIdx.y) * S::kRows;
  const int begin = part * size.depth, end = min(size.k, begin + size.depth);
  const bool sums_rows = row_sums && column == 0;
  auto cluster = cooperative_groups::this_cluster();
  if (blocks > 1) cluster.barrier_arrive();  // it runs: others may write into its shared memory
  const auto load = [&](int s) {
    if (const int k = begin + s * kSlabDepth; k < end) {
      T* stage = stages + s % kStages * Slabs::kHalves;
      Slabs::A::load(stage, a, size.m, size.k, row, k, end);
      Slabs::B::load(stage + Slabs::A::kHalves, b, size.n, size.k, column, k, end);
    }
    end_group();  // of nothing, too, as the groups are counted
  };
  let_next_start();
  wait_for_previous();
#pragma unroll
  for (int s = 0; s < kStages; ++s) load(s);
  const int my_column = column + thread % kQuads * 4;  // of all that this thread will store
  const float4 offset = bias && my_column < size.n ? load4<T>(bias, my_column, size.wide) : float4{};

  float sum[S::kWide][4] = {}, row_sum[4] = {};
  for (int s = 0; begin + s * kSlabDepth < end; ++s) {
    wait_for_groups<kStages - 1>();
    __syncthreads();
    const T *slab_a = stages + s % kStages * Slabs::kHalves, *slab_b = slab_a + Slabs::A::kHalves;
    float slab[S::kWide][4] = {}, row_slab[4] = {};  // tensor cores truncate: long sums are added up outside of them
#pragma unroll
    for (int u = 0; u < kEach; u += 16) {
      const int i = group * kEach + u;
      uint32_t x[4], y[S::kWide / 2][4];
      load_matrices<kTransA>(x, slab_a + Slabs::A::place(lane, top + lane / 8 % 2 * 8, i + lane / 16 * 8));
#pragma unroll
      for (int j = 0; j < S::kWide / 2; ++j)
        load_matrices<!kTransB>(y[j],
                                slab_b + Slabs::B::place(lane, left + j * 16 + lane / 16 * 8, i + lane / 8 % 2 * 8));
#pragma unroll
      for (int j = 0; j < S::kWide; ++j) multiply_add<T>(slab[j], x, y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
      if (sums_rows && left == 0) multiply_add<T>(row_slab, x, kOnes, kOnes);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
#pragma unroll
      for (int j = 0; j < S::kWide; ++j) sum[j][e] += slab[j][e];
      row_sum[e] += row_slab[e];
    }
    if (begin + (s + kStages) * kSlabDepth < end) __syncthreads();  // all have read this slab
    load(s + kStages);
  }

  // Block `owner` of the cluster writes `share` rows of the tile, and has room for each block's and group's sums there.
  const int share = S::kRows / blocks, parts = blocks * S::kGroups;
  if (blocks > 1) cluster.barrier_wait();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = top + lane / 4 + h * 8, owner = r * blocks / S::kRows;
    float* to = blocks > 1 ? cluster.map_shared_rank(sums, owner) : sums;
    to += ((part * S::kGroups + group) * share + r - owner * share) * S::kLd;
#pragma unroll
    for (int j = 0; j < S::kWide; ++j)
      *reinterpret_cast<float2*>(to + left + j * 8 + lane % 4 * 2) = {sum[j][h * 2], sum[j][h * 2 + 1]};
    if (sums_rows && left == 0 && lane % 4 == 0) to[S::kColumns] = row_sum[h * 2];
  }
  if (blocks > 1)
    cluster.sync();
  else
    __syncthreads();
  const int first = row + part * share;
  for (int i = thread; i < share * kQuads; i += kBlock) {
    const float* from = sums + i / kQuads * S::kLd + i % kQuads * 4;
    float4 each[kMost * S::kGroups], total = offset;
#pragma unroll
    for (int p = 0; p < kMost * S::kGroups; ++p)
      if (p < parts) each[p] = *reinterpret_cast<const float4*>(from + p * share * S::kLd);
#pragma unroll
    for (int p = 0; p < kMost * S::kGroups; ++p)
      if (p < parts) total = {total.x + each[p].x, total.y + each[p].y, total.z + each[p].z, total.w + each[p].w};
    if (const int r = first + i / kQuads; r < size.m && my_column < size.n)
      store4<T>(c, int64_t{r} * size.n + my_column, total, size.wide);
  }
  if (sums_rows && thread < share && first + thread < size.m) {
    float total = 0;
    for (int p = 0; p < parts; ++p) total += sums[(p * share + thread) * S::kLd + S::kColumns];
    row_sums[first + thread] = store_as<T>(total);
  }
#endif
}

template <class T>
void launch(const CudaContext& cuda, const CudaLane& lane, const GemmProblem& p, SmallGemmPlan plan,
            const GemmOperands& at) {
  const int64_t depth = up(up(p.k, plan.blocks), 16) * 16;
  const Sizes sizes{static_cast<int>(p.m),   static_cast<int>(p.n), static_cast<int>(p.k),
                    static_cast<int>(depth), plan.blocks,           p.out == DType::f32};
  with_tile<Tiles>(plan.tile, [&]<class S>() {
    with_layout(p, [&]<bool kTransA, bool kTransB>() {
      const int64_t stages = std::min<int64_t>(up(depth, kSlabDepth), kStages);
      const int64_t bytes =
          S::kSums * int64_t{sizeof(float)} + stages * Stage<T, S, kTransA, kTransB>::kHalves * int64_t{sizeof(T)};
      launch_early(cuda, small_half_gemm_kernel<T, S, kTransA, kTransB>,
                   shape_of<S>(p, plan, static_cast<size_t>(bytes), lane), sizes, static_cast<const T*>(at.a),
                   static_cast<const T*>(at.b), at.bias, at.c, static_cast<T*>(at.row_sums));
    });
  });
}
}  // namespace

std::vector<SmallGemmPlan> small_half_gemm_plans(const CudaContext& cuda, const GemmProblem& p) {
  if ((p.out != p.dtype && p.out != DType::f32) || p.m % 8 || p.n % 8 || p.k % 8) return {};
  return plans_of<Tiles>(cuda, p, true);
}

void small_half_gemm(const CudaContext& cuda, const CudaLane& lane, const GemmProblem& p, SmallGemmPlan plan,
                     const GemmOperands& at) {
  p.dtype == DType::f16 ? launch<Half>(cuda, lane, p, plan, at) : launch<BFloat16>(cuda, lane, p, plan, at);
}

}  // namespace ht
