// The one summing engine of the CUDA ops: what ops/reduce.h's reduce_cpu is on the CPU. Partial sums in double of every
// output, then their total in order, by the last block or by a kernel of its own; the result depends on the plan only,
// never on timing.
#pragma once

#include <cooperative_groups.h>

#include "core/cuda_kernels.cuh"
#include "ops/reduce.h"

namespace ht {

// What a sum reads by default: element i of x.
template <class T>
struct Elements {
  const T* x;
  __device__ acc_t<T> operator()(int64_t i) const { return load_as(x[i]); }
};

namespace reduce_detail {
constexpr int kWarp = 32;
constexpr int kFlush = 64;  // additions in the accumulation type before a lane's sum moves to double

// FP32 (or f64) sum that hands over to double often enough to stay accurate.
template <class A>
struct LaneSum {
  double total = 0;
  A sum = 0;
  int count = 0;
  __device__ void add(A v) {
    sum += v;
    if (++count == kFlush) {
      total += static_cast<double>(sum);
      sum = 0;
      count = 0;
    }
  }
  __device__ double value() const { return total + static_cast<double>(sum); }
};

__device__ inline double warp_sum(double v) {
  for (int step = kWarp / 2; step > 0; step /= 2) v += __shfl_down_sync(0xffffffffu, v, step);
  return v;
}

// Where a kernel's partial sums go: with one part to `put`, else to [parts, outputs], whose total the last block puts
// if there is a ticket.
template <class Put>
struct Partials {
  int64_t outputs, parts;
  double* at;
  unsigned* ticket;
  Put put;

  __device__ void add(int64_t out, int64_t part, double sum) const {
    parts == 1 ? put(out, sum) : void(at[part * outputs + out] = sum);
  }
  // The only output's part of a block, a row of kBlock threads: the sum of what each has.
  __device__ void add_block(double mine) const {
    __shared__ double sums[kBlock / kWarp];
    const int thread = static_cast<int>(threadIdx.x);
    const double warp = warp_sum(mine);
    if (thread % kWarp == 0) sums[thread / kWarp] = warp;
    __syncthreads();
    double total = 0;
    for (int w = 0; thread == 0 && w < kBlock / kWarp; ++w) total += sums[w];
    if (thread == 0) add(0, blockIdx.x, total);
    finish();
  }
  // Called by whole blocks after their adds. Few outputs take a warp each, more a thread each.
  __device__ void finish() const {
    if (!ticket || !is_last_block(ticket)) return;
    const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x), lanes = outputs < kWarp ? kWarp : 1;
    for (int64_t out = thread / lanes; out < outputs; out += kBlock / lanes) {
      double sum = 0;
#pragma unroll 4
      for (int64_t part = thread % lanes; part < parts; part += lanes) sum += __ldcg(at + part * outputs + out);
      if (lanes > 1) sum = warp_sum(sum);
      if (thread % lanes == 0) put(out, sum);
    }
  }
};

// A warp sums part `part` of output `out`, whose innermost group is contiguous and reduced.
template <class Load, class Map, class Put>
__global__ void __launch_bounds__(kBlock) rows_kernel(ReducePlan p, Load load, Map map, Partials<Put> partials) {
  let_next_start();
  wait_for_previous();
  const int64_t warp = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
  if (warp < p.outputs * partials.parts) {
    const int64_t out = warp % p.outputs, part = warp / p.outputs;
    const int64_t begin = p.count * part / partials.parts, end = p.count * (part + 1) / partials.parts;
    const int64_t base = p.kept.offset(out);
    LaneSum<decltype(map(load(0), out))> sum;
    if (p.reduced.rank == 0) {
#pragma unroll 4
      for (int64_t i = begin + lane; i < end; i += kWarp) sum.add(map(load(base + i), out));
    } else {
      for (int64_t i = begin + lane; i < end; i += kWarp)
        sum.add(map(load(base + p.reduced.offset(i / p.inner) + i % p.inner), out));
    }
    const double total = warp_sum(sum.value());
    if (lane == 0) partials.add(out, part, total);
  }
  partials.finish();
}

// One output of `n` contiguous elements, where one cluster of blocks is as fast as the whole device: its warps' sums
// meet in the first block.
constexpr unsigned kCluster = 8;
constexpr int kClusterBlock = 512;
template <class Load, class Map, class Put>
__global__ void __launch_bounds__(kClusterBlock) cluster_kernel(int n, Load load, Map map, Put put) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr int kWarps = kClusterBlock / kWarp, kStep = static_cast<int>(kCluster) * kClusterBlock;
  __shared__ double sums[kCluster * kWarps];
  const int thread = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
  auto cluster = cooperative_groups::this_cluster();
  cluster.barrier_arrive();  // it runs: the others may write into its shared memory
  let_next_start();
  wait_for_previous();
  LaneSum<decltype(map(load(0), 0))> sum;
  constexpr int kAtOnce = 8;  // loads that go out before the first of them is used
  for (int begin = block * kClusterBlock + thread; begin < n; begin += kAtOnce * kStep) {
    decltype(load(0)) value[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) value[u] = load(min(begin + u * kStep, n - 1));
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u)
      if (begin + u * kStep < n) sum.add(map(value[u], 0));
  }
  double total = warp_sum(sum.value());
  cluster.barrier_wait();
  if (thread % kWarp == 0) cluster.map_shared_rank(sums, 0)[block * kWarps + thread / kWarp] = total;
  cluster.sync();
  if (block != 0 || thread >= kWarp) return;
  total = 0;
  for (int i = thread; i < static_cast<int>(kCluster) * kWarps; i += kWarp) total += sums[i];
  total = warp_sum(total);
  if (thread == 0) put(0, total);
#endif
}

// A thread sums part blockIdx.y of one output; neighbours read neighbouring columns.
template <class Load, class Map, class Put>
__global__ void __launch_bounds__(kBlock) columns_kernel(ReducePlan p, Load load, Map map, Partials<Put> partials) {
  let_next_start();
  wait_for_previous();
  const int64_t out = int64_t{blockIdx.x} * kWarp + threadIdx.x, part = blockIdx.y, parts = partials.parts;
  const int64_t begin = p.reduced.count * part / parts, end = p.reduced.count * (part + 1) / parts;
  LaneSum<decltype(map(load(0), out))> sum;
  if (out < p.outputs) {
    const int64_t base = p.kept.offset(out / p.inner) + out % p.inner;
#pragma unroll 4
    for (int64_t row = begin + threadIdx.y; row < end; row += blockDim.y)
      sum.add(map(load(base + p.reduced.offset(row)), out));
  }
  __shared__ double shared[kBlock / kWarp][kWarp];
  shared[threadIdx.y][threadIdx.x] = sum.value();
  __syncthreads();
  if (threadIdx.y == 0 && out < p.outputs) {
    double total = 0;
    for (int r = 0; r < kBlock / kWarp; ++r) total += shared[r][threadIdx.x];
    partials.add(out, part, total);
  }
  partials.finish();
}

// A warp adds the parts of one output.
template <class Put>
__global__ void __launch_bounds__(kBlock) finish_kernel(Partials<Put> p) {
  let_next_start();
  wait_for_previous();
  const int64_t out = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
  if (out >= p.outputs) return;
  double sum = 0;
  for (int64_t part = lane; part < p.parts; part += kWarp) sum += p.at[part * p.outputs + out];
  sum = warp_sum(sum);
  if (lane == 0) p.put(out, sum);
}

template <class F>
__global__ void __launch_bounds__(kBlock) expand_kernel(ReducePlan p, F f) {
  HT_GRID_STRIDE(i, p.kept.count * p.reduced.count * p.inner) {
    const int64_t column = i % p.inner, row = i / p.inner % p.reduced.count, kept = i / p.inner / p.reduced.count;
    f(p.kept.offset(kept) + p.reduced.offset(row) + column, p.inner_reduced ? kept : kept * p.inner + column);
  }
}

inline unsigned blocks_for(int64_t threads) { return static_cast<unsigned>((threads + kBlock - 1) / kBlock); }
}  // namespace reduce_detail

// Calls the device functor put(o, sum of map(load(i), o) over the elements i behind output o, in double) once for each
// o.
template <class Load, class Map, class Put>
void reduce_on_cuda(Context& ctx, const ReducePlan& p, Load load, Map map, Put put) {
  using namespace reduce_detail;
  if (p.outputs == 0) return;
  constexpr int64_t kFewParts = 1 << 12;  // partial sums that the last block adds as soon as a kernel of its own would
  CudaContext& cuda = ctx.cuda();
  constexpr int64_t kClusterLeast = 1 << 11, kClusterMost = 1 << 16;
  if (cuda.kernels >= 90 && p.inner_reduced && p.outputs == 1 && p.reduced.rank == 0 && p.count >= kClusterLeast &&
      p.count <= kClusterMost)
    return launch_early(cuda, cluster_kernel<Load, Map, Put>, LaunchShape{kCluster, kClusterBlock, kCluster},
                        static_cast<int>(p.count), load, map, put);
  const int64_t width = p.inner_reduced ? p.outputs : (p.outputs + kWarp - 1) / kWarp;  // warps or blocks without parts
  const int64_t wanted = int64_t{cuda.sm_count} * (p.inner_reduced ? 32 : 4);
  const int64_t units = p.inner_reduced ? p.count / 256 : p.reduced.count / 128;
  const int64_t parts = std::clamp<int64_t>(std::min(wanted / width, units), 1, 4096);
  const bool here = parts > 1 && parts * p.outputs <= kFewParts;
  Tensor partial;
  if (parts > 1) partial = Tensor::empty({parts, p.outputs}, DType::f64, ctx.device());
  const Partials<Put> partials{p.outputs, parts, parts > 1 ? partial.data<double>() : nullptr,
                               here ? static_cast<unsigned*>(cuda.zeros_of(sizeof(unsigned))) : nullptr, put};
  if (p.inner_reduced)
    launch_early(cuda, rows_kernel<Load, Map, Put>, blocks_for(p.outputs * parts * kWarp), kBlock, p, load, map,
                 partials);
  else
    launch_early(cuda, columns_kernel<Load, Map, Put>, dim3(static_cast<unsigned>(width), static_cast<unsigned>(parts)),
                 dim3(kWarp, kBlock / kWarp), p, load, map, partials);
  if (parts > 1 && !here) launch_early(cuda, finish_kernel<Put>, blocks_for(p.outputs * kWarp), kBlock, partials);
}

namespace reduce_detail {
template <class A>
struct Same {
  __device__ A operator()(A v, int64_t) const { return v; }
};
template <class T>
struct StoreWeighted {
  T* y;
  double weight;
  __device__ void operator()(int64_t o, double total) const {
    y[o] = store_as<T>(static_cast<acc_t<T>>(total * weight));
  }
};
}  // namespace reduce_detail

// y [] of type T = weight * the sum of map(load(i), 0) for i below n.
template <class T, class Load, class Map = reduce_detail::Same<acc_t<T>>>
void weighted_sum_on_cuda(Context& ctx, Load load, int64_t n, double weight, const Tensor& y, Map map = {}) {
  ReducePlan plan;
  plan.count = plan.inner = n;
  reduce_on_cuda(ctx, plan, load, map, reduce_detail::StoreWeighted<T>{y.data<T>(), weight});
}

// For a kernel that makes y [] of type T = weight * a sum by itself: each of its `blocks` calls add_block() once.
// `partial` owns the blocks' sums.
template <class T>
auto weighted_sum_of_blocks(Context& ctx, unsigned blocks, double weight, const Tensor& y, Tensor& partial) {
  using Put = reduce_detail::StoreWeighted<T>;
  if (blocks > 1) partial = Tensor::empty({blocks}, DType::f64, ctx.device());
  void* const ticket = blocks > 1 ? ctx.cuda().zeros_of(sizeof(unsigned)) : nullptr;
  return reduce_detail::Partials<Put>{1, blocks, blocks > 1 ? partial.data<double>() : nullptr,
                                      static_cast<unsigned*>(ticket), Put{y.data<T>(), weight}};
}

// Calls the device functor f(i, o) once for every element i of x, o its output.
template <class F>
void expand_on_cuda(Context& ctx, const ReducePlan& p, F f) {
  const int64_t n = p.kept.count * p.reduced.count * p.inner;
  if (n == 0) return;
  reduce_detail::expand_kernel<<<grid_for(ctx.cuda(), n, 4), kBlock, 0, ctx.cuda().stream()>>>(p, f);
  HT_LAUNCHED("reduce backward");
}

}  // namespace ht
