// Elementwise loops over tensors of mixed floating dtypes, computed in A (float or double): blocks that fit the first
// cache are converted on the way in and out, tensors that hold A already are used where they lie.
#pragma once

#include "core/parallel.h"
#include "core/tensor.h"
#include "optim/scaler_state.h"

namespace ht::optim {

inline constexpr int64_t kBlock = 2048;

// Elements [at, at + n) of t as A: in place when t holds A, else converted into `buffer`.
template <class A>
A* load(const Tensor& t, int64_t at, int64_t n, A* buffer) {
  if (t.dtype() == dtype_of<A>()) return t.data<A>() + at;
  dispatch_floating(t.dtype(), "load", [&]<class T>() {
    const T* in = t.data<T>() + at;
    if constexpr (std::is_same_v<A, float> && std::is_same_v<acc_t<T>, float> && !std::is_same_v<T, float>) {
      to_float(in, buffer, n);
    } else {
      for (int64_t i = 0; i < n; ++i) buffer[i] = static_cast<A>(static_cast<acc_t<T>>(in[i]));
    }
  });
  return buffer;
}

// Writes n values that load gave back to t; nothing to do where they were used in place.
template <class A>
void store(const A* values, const Tensor& t, int64_t at, int64_t n) {
  if (t.dtype() == dtype_of<A>()) return;
  dispatch_floating(t.dtype(), "store", [&]<class T>() {
    T* out = t.data<T>() + at;
    if constexpr (std::is_same_v<A, float> && std::is_same_v<acc_t<T>, float> && !std::is_same_v<T, float>) {
      from_float(values, out, n);
    } else {
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(static_cast<acc_t<T>>(values[i]));
    }
  });
}

// The gradients of a block as the update uses them: in `buffer` when they change, since the gradient is only read.
template <class A>
const A* transformed(const GradTransform<A>& f, const A* grad, int64_t n, A* buffer) {
  if (f.is_identity()) return grad;
  for (int64_t i = 0; i < n; ++i) buffer[i] = f(grad[i]);
  return buffer;
}

// Calls f(at, n) on blocks of at most kBlock elements of [0, numel), in parallel.
template <class F>
void for_blocks(int64_t numel, F&& f) {
  parallel_for(numel, int64_t{1} << 14, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kBlock) f(at, std::min(kBlock, end - at));
  });
}

}  // namespace ht::optim
