// The copy behind slice and cat: both see an axis as `count` blocks of neighbouring elements, one an index of the axes
// before it.
#pragma once

#include <algorithm>
#include <cstring>

#include "core/build.h"
#include "core/context.h"
#include "core/parallel.h"
#include "core/tensor.h"

namespace ht {

// Copies `count` blocks of `bytes` bytes; block i starts at from + i * from_stride and goes to to + i * to_stride.
struct BlockCopy {
  const char* from;
  char* to;
  int64_t count, bytes, from_stride, to_stride;
};

// The CUDA launcher (ops/copy_blocks.cu).
void copy_blocks_cuda(Context& ctx, const BlockCopy& copy);

// Copies `length` indices of `axis`, from `from_begin` in one tensor to `to_begin` in another that agrees with it in
// dtype and in all other axes.
inline void copy_axis(Context& ctx, int axis, int64_t length, const Tensor& from, int64_t from_begin, const Tensor& to,
                      int64_t to_begin) {
  const int64_t item = from.shape().product(axis + 1, from.rank()) * static_cast<int64_t>(size_of(from.dtype()));
  const int64_t count = from.shape().product(0, axis), bytes = length * item;
  if (count * bytes == 0) return;
  const BlockCopy c{static_cast<const char*>(from.data()) + from_begin * item,
                    static_cast<char*>(to.data()) + to_begin * item,
                    count,
                    bytes,
                    from.dim(axis) * item,
                    to.dim(axis) * item};
  if constexpr (kCudaBuild) {
    if (ctx.is_cuda()) return copy_blocks_cuda(ctx, c);
  }
  parallel_for(count, std::max<int64_t>(1, (1 << 16) / bytes), [c](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      std::memcpy(c.to + i * c.to_stride, c.from + i * c.from_stride, static_cast<size_t>(c.bytes));
  });
}

}  // namespace ht
