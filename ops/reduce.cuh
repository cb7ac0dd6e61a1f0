// The one summing engine of the CUDA ops: what ops/reduce.h's reduce_cpu is on the CPU. Two kernels: partial sums in
// double of every output, then their total in order; the result depends on the plan only, never on timing.
#pragma once

#include "core/cuda_kernels.cuh"
#include "ops/reduce.h"

namespace ht {

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

// A warp sums part `part` of output `out`, whose innermost group is contiguous and reduced.
template <class T, class Map>
__global__ void __launch_bounds__(kBlock)
    rows_kernel(ReducePlan p, const T* x, Map map, int64_t parts, double* partial) {
  const int64_t warp = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
  if (warp >= p.outputs * parts) return;
  const int64_t out = warp % p.outputs, part = warp / p.outputs;
  const int64_t begin = p.count * part / parts, end = p.count * (part + 1) / parts;
  const T* from = x + p.kept.offset(out);
  LaneSum<acc_t<T>> sum;
  if (p.reduced.rank == 0) {
    for (int64_t i = begin + lane; i < end; i += kWarp) sum.add(map(load_as(from[i]), out));
  } else {
    for (int64_t i = begin + lane; i < end; i += kWarp)
      sum.add(map(load_as(from[p.reduced.offset(i / p.inner) + i % p.inner]), out));
  }
  const double total = warp_sum(sum.value());
  if (lane == 0) partial[part * p.outputs + out] = total;
}

// A thread sums part blockIdx.y of one output; neighbours read neighbouring columns.
template <class T, class Map>
__global__ void __launch_bounds__(kBlock)
    columns_kernel(ReducePlan p, const T* x, Map map, int64_t parts, double* partial) {
  const int64_t out = int64_t{blockIdx.x} * kWarp + threadIdx.x, part = blockIdx.y;
  const int64_t begin = p.reduced.count * part / parts, end = p.reduced.count * (part + 1) / parts;
  LaneSum<acc_t<T>> sum;
  if (out < p.outputs) {
    const T* from = x + p.kept.offset(out / p.inner) + out % p.inner;
    for (int64_t row = begin + threadIdx.y; row < end; row += blockDim.y)
      sum.add(map(load_as(from[p.reduced.offset(row)]), out));
  }
  __shared__ double shared[kBlock / kWarp][kWarp];
  shared[threadIdx.y][threadIdx.x] = sum.value();
  __syncthreads();
  if (threadIdx.y > 0 || out >= p.outputs) return;
  double total = 0;
  for (int r = 0; r < kBlock / kWarp; ++r) total += shared[r][threadIdx.x];
  partial[part * p.outputs + out] = total;
}

// A warp adds the parts of one output.
template <class Put>
__global__ void __launch_bounds__(kBlock)
    finish_kernel(const double* partial, int64_t outputs, int64_t parts, Put put) {
  const int64_t out = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp, lane = threadIdx.x % kWarp;
  if (out >= outputs) return;
  double sum = 0;
  for (int64_t part = lane; part < parts; part += kWarp) sum += partial[part * outputs + out];
  sum = warp_sum(sum);
  if (lane == 0) put(out, sum);
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

// Calls the device functor put(o, sum of map(x[i], o) over the elements i behind output o, in double) once for each o.
template <class T, class Map, class Put>
void reduce_on_cuda(Context& ctx, const ReducePlan& p, const T* x, Map map, Put put) {
  using namespace reduce_detail;
  if (p.outputs == 0) return;
  const CudaStream stream = ctx.cuda().stream();
  const int64_t width = p.inner_reduced ? p.outputs : (p.outputs + kWarp - 1) / kWarp;  // warps or blocks without parts
  const int64_t wanted = int64_t{ctx.cuda().sm_count} * (p.inner_reduced ? 32 : 4);
  const int64_t units = p.inner_reduced ? p.count / 256 : p.reduced.count / 32;
  const int64_t parts = std::clamp<int64_t>(std::min(wanted / width, units), 1, 4096);
  const Tensor partial = Tensor::empty({parts, p.outputs}, DType::f64, ctx.device());
  double* sums = partial.data<double>();
  if (p.inner_reduced) {
    rows_kernel<<<blocks_for(p.outputs * parts * kWarp), kBlock, 0, stream>>>(p, x, map, parts, sums);
  } else {
    const dim3 grid(static_cast<unsigned>(width), static_cast<unsigned>(parts));
    columns_kernel<<<grid, dim3(kWarp, kBlock / kWarp), 0, stream>>>(p, x, map, parts, sums);
  }
  HT_LAUNCHED("reduce");
  finish_kernel<<<blocks_for(p.outputs * kWarp), kBlock, 0, stream>>>(sums, p.outputs, parts, put);
  HT_LAUNCHED("reduce finish");
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

namespace reduce_detail {
constexpr int64_t kOneBlock = 1 << 14;  // values that one block adds as soon as two kernels would

template <class A, class Put>
__global__ void __launch_bounds__(kBlock) one_block_kernel(const A* values, int64_t n, Put put) {
  __shared__ double shared[kBlock];
  double sum = 0;
  let_next_start();
  wait_for_previous();
  for (int64_t i = threadIdx.x; i < n; i += kBlock) sum += static_cast<double>(values[i]);
  shared[threadIdx.x] = sum;
  for (int half = kBlock / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) shared[threadIdx.x] += shared[threadIdx.x + half];
  }
  if (threadIdx.x == 0) put(0, shared[0]);
}
}  // namespace reduce_detail

// y [] of type T = weight * the sum of n values.
template <class T>
void weighted_sum_on_cuda(Context& ctx, const acc_t<T>* values, int64_t n, double weight, const Tensor& y) {
  if (n <= reduce_detail::kOneBlock) {
    using Put = reduce_detail::StoreWeighted<T>;
    launch_early(ctx.cuda(), reduce_detail::one_block_kernel<acc_t<T>, Put>, 1, kBlock, values, n,
                 Put{y.data<T>(), weight});
    return;
  }
  ReducePlan plan;
  plan.count = plan.inner = n;
  reduce_on_cuda(ctx, plan, values, reduce_detail::Same<acc_t<T>>{},
                 reduce_detail::StoreWeighted<T>{y.data<T>(), weight});
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
