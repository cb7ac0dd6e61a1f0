// Kernels and libraries that move 16 bytes at a time need pointers that start at a multiple of 16. New tensors do; a
// view may not.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace ht {

inline bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// `t`, or a copy of it where it is not aligned (rare).
inline Tensor aligned(const Tensor& t) { return aligned16(t.data()) ? t : t.clone(); }

}  // namespace ht
