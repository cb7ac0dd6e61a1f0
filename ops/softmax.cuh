// Stable softmax statistics on CUDA: those of ops/softmax.h, for a row held by a warp or a column held by a thread.
#pragma once

#include "core/cuda_kernels.cuh"

namespace ht {

template <class A>
struct MaxAndRest {
  A max;   // m
  A rest;  // sum of e^(x - m) without the first maximum's own 1
};

// `n` elements `stride` apart, shared by kLanes neighbouring threads (1 or a whole warp); all of them get the result.
template <int kLanes, class T>
__device__ MaxAndRest<acc_t<T>> softmax_stats_of(const T* x, int64_t n, int64_t stride, int lane) {
  using A = acc_t<T>;
  A max = -INFINITY;
  int64_t arg = -1;
  for (int64_t j = lane; j < n; j += kLanes) {
    const A v = load_as(x[j * stride]);
    if (v > max) max = v, arg = j;
  }
  if constexpr (kLanes > 1) {
    for (int step = kLanes / 2; step > 0; step /= 2) {
      const A other = __shfl_xor_sync(0xffffffffu, max, step);
      const int64_t other_arg = __shfl_xor_sync(0xffffffffu, static_cast<long long>(arg), step);
      if (other > max || (other == max && other_arg >= 0 && (arg < 0 || other_arg < arg))) max = other, arg = other_arg;
    }
  }
  A rest = 0;
  for (int64_t j = lane; j < n; j += kLanes) {
    const A d = load_as(x[j * stride]) - max;
    rest += j == arg ? d : ::exp(d);  // d is 0 at the maximum, NaN when that is infinite
  }
  if constexpr (kLanes > 1)
    for (int step = kLanes / 2; step > 0; step /= 2) rest += __shfl_xor_sync(0xffffffffu, rest, step);
  return {max, rest};
}

// The sum of v over the kLanes threads that share a row.
template <int kLanes, class A>
__device__ A lanes_sum(A v) {
  if constexpr (kLanes > 1)
    for (int step = kLanes / 2; step > 0; step /= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
  return v;
}

}  // namespace ht
