// The mask of dropout, shared by CPU and CUDA: a pure function of the stream and the element's index, so that nothing
// is stored for backward.
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace ht {

struct DropoutMask {
  PhiloxStream stream;
  uint64_t threshold = 0;  // p * 2^32: element i is dropped when number i of the stream lies below it
  double scale = 1;        // 1 / (1 - p) of what stays

  HT_HD constexpr bool keeps(uint32_t bits) const { return bits >= threshold; }
};

// The CUDA launcher (ops/dropout.cu): y = x * mask * scale; forward on x, backward on dy.
void dropout_cuda(Context& ctx, const DropoutMask& mask, const Tensor& x, const Tensor& y);

}  // namespace ht
