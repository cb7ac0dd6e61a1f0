// Runs of neighbouring channels in the type that kernels compute in. Kernels work on at most kRun channels at a time,
// so that 16-bit data is converted in bulk through a buffer on the stack; f32 and f64 are read and written in place.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/dtype.h"

namespace ht {

inline constexpr int64_t kRun = 256;

// `n` elements to read: `from` itself, or `buffer` filled with its converted values.
template <class T>
const acc_t<T>* load_run(const T* from, [[maybe_unused]] acc_t<T>* buffer, [[maybe_unused]] int64_t n) {
  if constexpr (std::is_same_v<T, acc_t<T>>) {
    return from;
  } else {
    to_float(from, buffer, n);
    return buffer;
  }
}

// Where to compute a run meant for `to`; store_run then brings it there.
template <class T>
acc_t<T>* run_target([[maybe_unused]] T* to, [[maybe_unused]] acc_t<T>* buffer) {
  if constexpr (std::is_same_v<T, acc_t<T>>) {
    return to;
  } else {
    return buffer;
  }
}

template <class T>
void store_run(const acc_t<T>* values, T* to, int64_t n) {
  if constexpr (std::is_same_v<T, acc_t<T>>) {
    if (values != to) std::copy_n(values, n, to);
  } else {
    from_float(values, to, n);
  }
}

}  // namespace ht
