// What the kernels of ops/batch_norm_resident.cu are made of: which batches fit, the packs that a thread holds, sums
// over a cluster of blocks, running statistics by blocks that do not see all channels.
#pragma once

#include <cooperative_groups.h>
#include <cuda_pipeline.h>

#include <cuda/atomic>
#include <optional>

#include "ops/batch_norm.cuh"

namespace ht::bn::resident {

namespace cg = cooperative_groups;

inline constexpr int kGroup = 2;  // packs of a block's channels: a sector of memory a row
inline constexpr int kMostCluster = 8, kWarps = kMostThreads / 32, kStages = 4;
// Of x in a block, half of it with a pool; above, the L2 cache serves as well.
inline constexpr size_t kMostBytes = 32 << 10;

struct Residence {
  dim3 grid, block;
  int each;  // rows or windows of a thread, at most
  size_t bytes;
};

// None where it does not fit. `packs`: held for each row or window.
template <class T>
std::optional<Residence> residence_of(const CudaContext& cuda, const Geometry& g, bool pool, int packs) {
  const int64_t columns = g.channels * static_cast<int64_t>(sizeof(T)) / 16, groups = columns / kGroup;
  if (cuda.kernels < 90 || columns % kGroup != 0 || groups == 0 || groups >= 1 << 16 || g.rows >= 1 << 20) return {};
  if (pool && (g.h % 2 != 0 || g.w % 2 != 0)) return {};
  int64_t cluster = 1;
  while (cluster < kMostCluster && cluster * 2 <= g.rows && groups * cluster * 2 <= cuda.sm_count) cluster *= 2;
  const int64_t items = (g.rows + cluster - 1) / cluster * kGroup;
  int64_t threads = 64;
  while (threads < kMostThreads && threads < items) threads *= 2;
  const int64_t each = (items + threads - 1) / threads;
  const auto bytes = [&](int held) { return static_cast<size_t>(each * threads * held) * 16; };
  if (bytes(pool ? 4 : 1) > kMostBytes / (pool ? 2 : 1)) return {};
  return Residence{dim3(static_cast<unsigned>(cluster), static_cast<unsigned>(groups)),
                   dim3(static_cast<unsigned>(threads)), static_cast<int>(each), bytes(packs)};
}

// Where a thread works, and the packs that it holds.
template <class T>
struct Holder {
  static constexpr int N = 16 / static_cast<int>(sizeof(T));
  using P = Pack<T, N>;
  int4* held;
  int64_t c;  // its first channel
  int first, step, rows, each;

  __device__ __forceinline__ Holder(int64_t all_rows, int most) {
    extern __shared__ int4 shared[];
    held = shared + threadIdx.x;
    c = (int64_t{blockIdx.y} * kGroup + threadIdx.x % kGroup) * N;
    first = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / kGroup;
    step = static_cast<int>(gridDim.x * blockDim.x) / kGroup;
    rows = static_cast<int>(all_rows), each = most;
  }
  // Packs go as they are through memory: the compiler takes them apart there.
  __device__ __forceinline__ P at(int slot) const {
    const int4 raw = held[slot * static_cast<int>(blockDim.x)];
    P pack;
    memcpy(&pack, &raw, sizeof pack);
    return pack;
  }
  static __device__ __forceinline__ void put(T* to, const P& pack) {
    uint32_t word[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if constexpr (sizeof(T) == 2)
        word[k] = pack.v[2 * k].bits | static_cast<uint32_t>(pack.v[2 * k + 1].bits) << 16;
      else
        word[k] = __float_as_uint(pack.v[k]);
    }
    __stwb(reinterpret_cast<uint4*>(to), make_uint4(word[0], word[1], word[2], word[3]));
  }
  // Asks for a pack, which is there in use_all().
  __device__ __forceinline__ void ask(int slot, const T* from) const {
    __pipeline_memcpy_async(held + slot * static_cast<int>(blockDim.x), from, sizeof(P));
  }
  __device__ __forceinline__ void ask(int slot, const Window<T, N>& w, const T* from) const {
#pragma unroll
    for (int p = 0; p < 4; ++p) ask(slot + p, from + w.at[p]);
  }
  __device__ __forceinline__ void take(int slot, Window<T, N>& w) const {
#pragma unroll
    for (int p = 0; p < 4; ++p) w.x[p] = at(slot + p);
  }
  // f(i, r) for each of the thread's rows: what it asks for arrives in kStages groups.
  template <class F>
  __device__ __forceinline__ void ask_all(F&& f) const {
#pragma unroll 1
    for (int stage = 0; stage < kStages; ++stage) {
      span(stage, stage + 1, f);
      __pipeline_commit();
    }
  }
  // The same as the groups arrive.
  template <int kStage = 0, class F>
  __device__ __forceinline__ void use_all(F&& f) const {
    if constexpr (kStage < kStages) {
      __pipeline_wait_prior(kStages - 1 - kStage);
      span(kStage, kStage + 1, f);
      use_all<kStage + 1>(f);
    }
  }
  // And once more.
  template <class F>
  __device__ __forceinline__ void each_row(F&& f) const {
    span(0, kStages, f);
  }

 private:
  template <class F>
  __device__ __forceinline__ void span(int begin, int end, F&& f) const {
    const int stage = (each + kStages - 1) / kStages;
    for (int i = begin * stage; i < min(end * stage, each); ++i)
      if (const int r = first + i * step; r < rows) f(i, r);
  }
};

// Adds two numbers a channel over the cluster.
template <int N>
class ClusterSums {
 public:
  // Called by whole blocks. Thread i < kLanes gets both sums of the group's channel i.
  static constexpr int kLanes = kGroup * N, kSums = 2 * kLanes;
  __device__ __forceinline__ void add(const float (&first)[N], const float (&second)[N], float& sum, float& other) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    float v[2 * N];
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = first[k], v[N + k] = second[k];
    int number = 0;
    bool owns = true;
    halve<N, 16>(v, number, owns);
    if (owns) warps_[warp][number / N * kLanes + lane % kGroup * N + number % N] = v[0];
    __syncthreads();
    const int warps = static_cast<int>(blockDim.x) / 32, blocks = static_cast<int>(gridDim.x);
    if (thread < kSums) block_[thread] = added<kWarps>(warps, [&](int w) { return warps_[w][thread]; });
    auto cluster = cg::this_cluster();
    cluster.sync();
    if (thread < kLanes) {
      const auto of = [&](int i) {
        return added<kMostCluster, double>(blocks, [&](int b) { return cluster.map_shared_rank(block_, b)[i]; });
      };
      sum = static_cast<float>(of(thread)), other = static_cast<float>(of(kLanes + thread));
    }
#endif
  }
  // Called by whole blocks when they are done with add(), and before they end: others read their sums till then.
  __device__ __forceinline__ void arrive() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __syncthreads();
    cg::cluster_group::barrier_arrive();
#endif
  }
  __device__ __forceinline__ void wait() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __syncwarp();
    cg::cluster_group::barrier_wait();
#endif
  }

 private:
  // value(0) + .. + value(count - 1), of at most kMost, which are all asked for before the first is added.
  template <int kMost, class A = float, class F>
  static __device__ __forceinline__ A added(int count, F&& value) {
    float v[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i) v[i] = i < count ? value(i) : 0.0f;
    A total = 0;
#pragma unroll
    for (int i = 0; i < kMost; ++i) total += static_cast<A>(v[i]);
    return total;
  }
  // Lanes of a column halve what each still adds, until each has one number.
  template <int kCount, int kLane>
  static __device__ __forceinline__ void halve(float (&v)[2 * N], int& number, bool& owns) {
    if constexpr (kLane >= kGroup) {
      const bool upper = threadIdx.x & kLane;
      if constexpr (kCount > 0) {
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
          const float give = upper ? v[k] : v[k + kCount], keep = upper ? v[k + kCount] : v[k];
          v[k] = keep + __shfl_xor_sync(0xffffffffu, give, kLane);
        }
        number += upper ? kCount : 0;
      } else {
        v[0] += __shfl_xor_sync(0xffffffffu, v[0], kLane);
        owns = owns && !upper;
      }
      halve<kCount / 2, kLane / 2>(v, number, owns);
    }
  }

  float warps_[kWarps][kSums], block_[kSums];
};

// Running statistics, which stay unless all channels are finite. Each group writes its own at once and saves the old
// ones; the last to come takes all back where one was not finite.
template <class T>
struct Running {
  using A = acc_t<T>;
  Statistics<T> s;
  A* saved;          // [2, c]
  unsigned* ticket;  // groups that came, and in the upper half those not finite; 0 before and after

  struct Old {
    A mean = 0, var = 0;
  };
  // The old ones of channel c, some time before the update.
  __device__ __forceinline__ Old old(int64_t c) const {
    return s.running_mean ? Old{s.running_mean[c], s.running_var[c]} : Old{};
  }
  // By warp 0 of one block a group, `mine` being whether the lane has a channel.
  __device__ __forceinline__ unsigned update(int64_t c, int64_t channels, bool mine, Old from, A mean, A var) const {
    if (s.batches && blockIdx.y == 0 && threadIdx.x == 0) ++*s.batches;
    if (!s.running_mean) return 0;
    bool finite = true;
    if (mine) {
      const A unbiased = var * static_cast<A>(s.unbiased), keep = static_cast<A>(1 - s.momentum);
      const A newest = static_cast<A>(s.momentum);
      finite = isfinite(mean) && isfinite(unbiased);
      saved[c] = from.mean, saved[channels + c] = from.var;
      if (finite)
        s.running_mean[c] = keep * from.mean + newest * mean, s.running_var[c] = keep * from.var + newest * unbiased;
    }
    const unsigned failed = __all_sync(0xffffffffu, finite) ? 0 : 1u << 16;
    __syncwarp();
    if (threadIdx.x != 0) return 0;
    return cuda::atomic_ref<unsigned, cuda::thread_scope_device>(*ticket).fetch_add(1 + failed,
                                                                                    cuda::memory_order_release) +
           1 + failed;
  }
  __device__ __forceinline__ void settle(unsigned count, int64_t channels) const {
    if (!s.running_mean) return;
    count = __shfl_sync(0xffffffffu, count, 0);
    if ((count & 0xffff) != gridDim.y) return;
    if (threadIdx.x == 0) *ticket = 0;
    if (count >> 16 == 0) return;
    __threadfence();
    for (int64_t c = threadIdx.x; c < channels; c += 32)
      s.running_mean[c] = __ldcg(saved + c), s.running_var[c] = __ldcg(saved + channels + c);
  }
};

}  // namespace ht::bn::resident
