// What the pools' kernels share: a thread takes one pixel and a pack of channels, 16 bytes where the layout allows.
#pragma once

#include "core/cuda_kernels.cuh"
#include "ops/pool.h"

namespace ht {

template <class T, int N>
__device__ __forceinline__ void load_pack(const T* from, acc_t<T> (&to)[N]) {
  const Pack<T, N> p = *reinterpret_cast<const Pack<T, N>*>(from);
#pragma unroll
  for (int k = 0; k < N; ++k) to[k] = load_as(p.v[k]);
}

template <class T, int N>
__device__ __forceinline__ void store_pack(const acc_t<T> (&from)[N], T* to) {
  Pack<T, N> p;
#pragma unroll
  for (int k = 0; k < N; ++k) p.v[k] = store_as<T>(from[k]);
  *reinterpret_cast<Pack<T, N>*>(to) = p;
}

// Calls f.operator()<T, N>(), T being the first tensor's type, with the widest pack of channels that all the tensors
// allow: 16 bytes, or one element. An undefined tensor allows any.
template <class F>
void dispatch_packs(std::initializer_list<Tensor> tensors, int64_t channels, F&& f) {
  const bool aligned = std::all_of(tensors.begin(), tensors.end(), [](const Tensor& t) { return aligned16(t.data()); });
  dispatch_floating(tensors.begin()->dtype(), "pool", [&]<class T>() {
    constexpr int kWide = 16 / static_cast<int>(sizeof(T));
    if (channels % kWide == 0 && aligned) {
      f.template operator()<T, kWide>();
    } else {
      f.template operator()<T, 1>();
    }
  });
}

}  // namespace ht
