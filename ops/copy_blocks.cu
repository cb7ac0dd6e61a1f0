#include "core/cuda_kernels.cuh"
#include "ops/copy_blocks.h"

namespace ht {

void copy_blocks_cuda(Context& ctx, const BlockCopy& c) {
  HT_CUDA_CALL(cudaMemcpy2DAsync(c.to, static_cast<size_t>(c.to_stride), c.from, static_cast<size_t>(c.from_stride),
                                 static_cast<size_t>(c.bytes), static_cast<size_t>(c.count), cudaMemcpyDeviceToDevice,
                                 ctx.cuda().stream()));
}

}  // namespace ht
