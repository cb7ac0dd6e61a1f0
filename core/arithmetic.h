// The few writes on plain tensors that the tape and the optimizers need below the ops.
#pragma once

#include "core/tensor.h"

namespace ht {

// to += from, elementwise in `to`'s accumulation type; shapes and devices must agree. Both are floating, of the same
// or different dtypes, or both i64 (counters). Raises the version of `to`.
void add_into(const Tensor& to, const Tensor& from);

// The CUDA side (core/copy.cu).
void add_into_cuda(const Tensor& to, const Tensor& from);

}  // namespace ht
