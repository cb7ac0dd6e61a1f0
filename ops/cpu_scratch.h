// Working memory of the CPU kernels.
#pragma once

#include <cstdint>

#include "core/allocator.h"
#include "core/dtype.h"

namespace ht {

// `count` uninitialised elements from the CPU's caching allocator, given back at the end of the scope.
template <class T>
class Scratch {
 public:
  explicit Scratch(int64_t count)
      : data_(static_cast<T*>(allocate(static_cast<size_t>(count) * sizeof(T), Device::cpu()))) {}
  ~Scratch() { deallocate(data_, Device::cpu()); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  T* data() const { return data_; }

 private:
  T* data_;
};

// `rows` rows of `cols` elements, converted to the type they are computed in (a plain copy for float and double).
template <class T>
void widen(const T* from, int64_t ld, int64_t rows, int64_t cols, acc_t<T>* to, int64_t ld_to) {
  for (int64_t r = 0; r < rows; ++r) {
    if constexpr (sizeof(T) == 2)
      to_float(from + r * ld, to + r * ld_to, cols);
    else
      std::copy_n(from + r * ld, cols, to + r * ld_to);
  }
}
// The way back, rounding each element once.
template <class T>
void narrow(const acc_t<T>* from, int64_t ld, int64_t rows, int64_t cols, T* to, int64_t ld_to) {
  for (int64_t r = 0; r < rows; ++r) {
    if constexpr (sizeof(T) == 2)
      from_float(from + r * ld, to + r * ld_to, cols);
    else
      std::copy_n(from + r * ld, cols, to + r * ld_to);
  }
}

}  // namespace ht
