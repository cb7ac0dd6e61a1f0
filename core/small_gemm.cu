// A tile of C to a cluster of blocks, a block's warps in groups; every group takes a part of k for the whole tile, with
// slabs of its own. All of that part is on its way at once where kStages slabs hold it.
// The groups' sums meet in the block's shared memory; the total goes straight into that of the block which writes those
// rows.
#include <cooperative_groups.h>

#include "core/small_gemm_tiles.h"

namespace ht {

using namespace small_gemms;

namespace {
constexpr int kSlabDepth = 16;  // of k
constexpr int kStages = 4;      // slabs of a group in flight

// A warp has 32 rows and 32 columns, a thread 8 rows of 4 columns.
template <int kRows_, int kColumns_>
struct Tile {
  static constexpr int kRows = kRows_, kColumns = kColumns_;
  static constexpr int kThreads = kRows * kColumns / 32;  // of a group
  static constexpr int kGroups = kBlock / kThreads, kDepth = kGroups * kSlabDepth;
  static constexpr int kQuads = kThreads * 8;       // of the tile: number r * kThreads + t is row r of thread t
  static constexpr int kSums = kQuads + kRows / 4;  // and the sums of op(A)'s rows
};
using Tiles = std::tuple<Tile<32, 32>, Tile<64, 32>, Tile<32, 64>, Tile<64, 64>>;

struct Sizes {
  int m, n, k, depth, blocks;  // depth: of k, a group's share
  int room;                    // of a group in shared memory, in float4s
};

[[maybe_unused]] __device__ __forceinline__ float4 operator+(const float4& a, const float4& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// kRows rows of an operand, kSlabDepth of k, in shared memory as in memory: [rows, k] when kAlongK, else [k, rows].
// kAcross of a warp's lanes have different rows, kEach of 32 a lane: those that let neighbours read 16 bytes each from
// different banks. For the same reason lines along k are an odd number of float4s.
template <int kRows, int kAcross, bool kAlongK, int kThreads>
struct Slab {
  static constexpr int kEach = 32 / kAcross;
  static constexpr int kLine = kAlongK ? kSlabDepth : kRows, kLd = kAlongK ? kSlabDepth + 4 : kRows;
  static constexpr int kFloats = kRows * kSlabDepth / kLine * kLd;
  static constexpr int kCopies = kRows * kSlabDepth / (4 * kThreads);  // of a thread
  static_assert(kSlabDepth == 16 && kCopies * kThreads * 4 == kRows * kSlabDepth);

  static __device__ __forceinline__ int row_of(int lane, int e) {
    return kAlongK ? lane + e * kAcross : lane * 4 + e % 4 + e / 4 * (kAcross * 4);
  }
  // Sends for rows from `row` on at k in [begin, end), zeros where there is nothing.
  static __device__ __forceinline__ void load(float* slab, const float* from, int rows, int k, int row, int begin,
                                              int end, int thread) {
    // Along k, eight lanes write to rows that are 4 apart: other banks.
    const int line = kAlongK ? thread / 32 * 8 + thread / 8 % 4 + thread / 4 % 2 * 4 : thread / (kLine / 4),
              inside = thread % (kLine / 4) * 4;
#pragma unroll
    for (int u = 0; u < kCopies; ++u) {
      const int further = line + u * (kThreads * 4 / kLine);
      const int at_row = row + (kAlongK ? further : inside), at_k = begin + (kAlongK ? inside : further);
      const bool there = at_row < rows && at_k < end;
      // Some 2^25 at most; unsigned, since 64 bits of a sign cost instructions.
      const auto offset = static_cast<uint32_t>(kAlongK ? at_row * k + at_k : at_k * rows + at_row);
      copy16(slab + further * kLd + inside, from + (there ? offset : 0), there);
    }
  }
  // This lane's numbers of the 32 rows from `top` on, at k and the next three.
  static __device__ __forceinline__ void read(float (&x)[4][kEach], const float* slab, int top, int lane, int k) {
    if constexpr (kAlongK) {
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        const auto v = *reinterpret_cast<const float4*>(slab + (top + row_of(lane, e)) * kLd + k);
        x[0][e] = v.x, x[1][e] = v.y, x[2][e] = v.z, x[3][e] = v.w;
      }
    } else {
#pragma unroll
      for (int q = 0; q < 4; ++q)
#pragma unroll
        for (int e = 0; e < kEach; e += 4)
          *reinterpret_cast<float4*>(x[q] + e) =
              *reinterpret_cast<const float4*>(slab + (k + q) * kLd + top + row_of(lane, e));
    }
  }
  static __device__ __forceinline__ float sum_of(const float* slab, int row) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < kSlabDepth; k += 4) {
      if constexpr (kAlongK) {
        const auto v = *reinterpret_cast<const float4*>(slab + row * kLd + k);
        sum += v.x + v.y + (v.z + v.w);
      } else {
        const float* v = slab + k * kLd + row;
        sum += v[0] + v[kLd] + (v[2 * kLd] + v[3 * kLd]);
      }
    }
    return sum;
  }
};

template <class T, bool kTransA, bool kTransB>
struct Stage {
  using A = Slab<T::kRows, 4, !kTransA, T::kThreads>;
  using B = Slab<T::kColumns, 8, kTransB, T::kThreads>;
  static constexpr int kFloats = A::kFloats + B::kFloats;
};

// Registers for two blocks of an SM, although one runs: the next kernel's then start beside it.
template <class T, bool kTransA, bool kTransB>
__global__ void __launch_bounds__(kBlock, 2)
    small_gemm_kernel(Sizes size, const float* a, const float* b, const float* bias, float* c, float* row_sums) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using Slabs = Stage<T, kTransA, kTransB>;
  using A = typename Slabs::A;
  using B = typename Slabs::B;
  extern __shared__ float4 shared[];
  const int block_thread = static_cast<int>(threadIdx.x), group = block_thread / T::kThreads,
            thread = block_thread % T::kThreads, warp = thread / 32, lane = thread % 32;
  // A lane has its rows in common with lane ^ 2, its columns with lane ^ 1: half a warp's read of 16 bytes is one step.
  const int lane_a = lane % 2 + lane / 16 * 2, lane_b = lane / 2 % 8;
  const int top = warp / (T::kColumns / 32) * 32, left = warp % (T::kColumns / 32) * 32;
  const int blocks = size.blocks, part = static_cast<int>(blockIdx.x) % blocks,
            column = static_cast<int>(blockIdx.x) / blocks * T::kColumns, row = static_cast<int>(blockIdx.y) * T::kRows;
  const int begin = (part * T::kGroups + group) * size.depth, end = min(size.k, begin + size.depth);
  const bool sums_rows = row_sums && column == 0;
  float4 *sums = shared + group * size.room, *pushed = shared + T::kGroups * size.room;
  float* stages = reinterpret_cast<float*>(sums);
  auto cluster = cooperative_groups::this_cluster();
  if (blocks > 1) cluster.barrier_arrive();  // it runs: others may write into its shared memory
  const auto load = [&](int s) {
    if (const int k = begin + s * kSlabDepth; k < end) {
      float* stage = stages + s % kStages * Slabs::kFloats;
      A::load(stage, a, size.m, size.k, row, k, end, thread);
      B::load(stage + A::kFloats, b, size.n, size.k, column, k, end, thread);
    }
    end_group();  // of nothing, too, as the groups are counted
  };
  let_next_start();
  wait_for_previous();
#pragma unroll 1
  for (int s = 0; s < kStages; ++s) load(s);
  float offset[4] = {};
#pragma unroll
  for (int e = 0; e < 4; ++e)
    if (const int at = column + left + B::row_of(lane_b, e); bias && at < size.n) offset[e] = bias[at];

  float sum[8][4] = {}, row_sum = 0;
  for (int s = 0; s * kSlabDepth < size.depth; ++s) {  // as often for each group, also for one without a share
    wait_for_groups<kStages - 1>();
    __syncthreads();
    const float *slab_a = stages + s % kStages * Slabs::kFloats, *slab_b = slab_a + A::kFloats;
    const int deep = min(kSlabDepth, end - begin - s * kSlabDepth);
    for (int i = 0; i < deep; i += 8) {
#pragma unroll
      for (int u = 0; u < 8; u += 4) {
        float x[4][8], y[4][4];
        A::read(x, slab_a, top, lane_a, i + u);
        B::read(y, slab_b, left, lane_b, i + u);
#pragma unroll
        for (int q = 0; q < 4; ++q)
#pragma unroll
          for (int r = 0; r < 8; ++r)
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[r][e] += x[q][r] * y[q][e];
      }
    }
    if (sums_rows && thread < T::kRows && deep > 0) row_sum += A::sum_of(slab_a, thread);  // so long sums stay exact
    if ((s + kStages) * kSlabDepth < size.depth) __syncthreads();                          // all have read this slab
    load(s + kStages);
  }

  __syncthreads();  // a group's sums take the place of its slabs
#pragma unroll
  for (int r = 0; r < 8; ++r) sums[r * T::kThreads + thread] = {sum[r][0], sum[r][1], sum[r][2], sum[r][3]};
  if (sums_rows && thread < T::kRows) reinterpret_cast<float*>(sums + T::kQuads)[thread] = row_sum;
  __syncthreads();

  const auto store = [&](int i, const float4& total) {
    const int to_row = row + top + A::row_of(lane_a, i / T::kThreads);
    const float v[4] = {total.x + offset[0], total.y + offset[1], total.z + offset[2], total.w + offset[3]};
    if (to_row >= size.m) return;
    float* to = c + int64_t{to_row} * size.n;
    if constexpr (kTransB) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (const int at = column + left + B::row_of(lane_b, e); at < size.n) to[at] = v[e];
    } else if (const int at = column + left + B::row_of(lane_b, 0); at < size.n) {
      *reinterpret_cast<float4*>(to + at) = {v[0], v[1], v[2], v[3]};
    }
  };
  // Block `owner` of the cluster writes `share` quads of the tile, and the first one the row sums.
  const int share = T::kQuads / blocks;
  float* pushed_sums = reinterpret_cast<float*>(pushed + T::kQuads);
  if (blocks > 1) cluster.barrier_wait();
#pragma unroll
  for (int i = block_thread; i < T::kQuads; i += kBlock) {
    float4 total = shared[i];
#pragma unroll
    for (int g = 1; g < T::kGroups; ++g) total = total + shared[g * size.room + i];
    if (blocks == 1) {
      store(i, total);
    } else {
      const int owner = i * blocks / T::kQuads;
      cluster.map_shared_rank(pushed, owner)[part * share + i - owner * share] = total;
    }
  }
  if (sums_rows && block_thread < T::kRows) {
    float total = 0;
#pragma unroll
    for (int g = 0; g < T::kGroups; ++g)
      total += reinterpret_cast<const float*>(shared + g * size.room + T::kQuads)[block_thread];
    if (blocks > 1)
      cluster.map_shared_rank(pushed_sums, 0)[part * T::kRows + block_thread] = total;
    else if (row + block_thread < size.m)
      row_sums[row + block_thread] = total;
  }
  if (blocks == 1) return;
  cluster.sync();
  for (int i = block_thread; i < share; i += kBlock) {
    float4 each[kMost], total{};
#pragma unroll
    for (int p = 0; p < kMost; ++p)
      if (p < blocks) each[p] = pushed[p * share + i];
#pragma unroll
    for (int p = 0; p < kMost; ++p)
      if (p < blocks) total = total + each[p];
    store(part * share + i, total);
  }
  if (sums_rows && part == 0 && block_thread < T::kRows && row + block_thread < size.m) {
    float total = 0;
    for (int p = 0; p < blocks; ++p) total += pushed_sums[p * T::kRows + block_thread];
    row_sums[row + block_thread] = total;
  }
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
  return plans_of<Tiles>(cuda, p, true);
}

void small_gemm(const CudaContext& cuda, const CudaLane& lane, const GemmProblem& p, SmallGemmPlan plan,
                const GemmOperands& at) {
  if (is_half(p.dtype)) return small_half_gemm(cuda, lane, p, plan, at);
  with_tile<Tiles>(plan.tile, [&]<class T>() {
    with_layout(p, [&]<bool kTransA, bool kTransB>() {
      const int64_t depth = up(up(p.k, plan.blocks * T::kGroups), 4) * 4;
      const int64_t slabs = std::min<int64_t>(up(depth, kSlabDepth), kStages);
      const int64_t room = std::max<int64_t>(slabs * Stage<T, kTransA, kTransB>::kFloats / 4, T::kSums);
      const int64_t pushed = plan.blocks > 1 ? T::kQuads + kMost * T::kRows / 4 : 0;
      const Sizes sizes{static_cast<int>(p.m),   static_cast<int>(p.n), static_cast<int>(p.k),
                        static_cast<int>(depth), plan.blocks,           static_cast<int>(room)};
      launch_early(cuda, small_gemm_kernel<T, kTransA, kTransB>,
                   shape_of<T>(p, plan, static_cast<size_t>(T::kGroups * room + pushed) * sizeof(float4), lane), sizes,
                   static_cast<const float*>(at.a), static_cast<const float*>(at.b), static_cast<const float*>(at.bias),
                   static_cast<float*>(at.c), static_cast<float*>(at.row_sums));
    });
  });
}

}  // namespace ht
