// The copies behind slice and cat on CUDA. cudaMemcpy2D is no use here: it takes strides below 2^31 bytes only.
#include <numeric>

#include "core/cuda_kernels.cuh"
#include "ops/copy_blocks.h"

namespace ht {

namespace {
// A block is `units` neighbouring U; strides are in U, too.
template <class U>
__global__ void copy_kernel(const U* from, U* to, int64_t units, int64_t from_stride, int64_t to_stride, int64_t n) {
  HT_GRID_STRIDE(i, n) {
    const int64_t block = i / units, k = i % units;
    to[block * to_stride + k] = from[block * from_stride + k];
  }
}

template <class U>
void copy_as(CudaContext& cuda, const BlockCopy& c) {
  constexpr int64_t kSize = sizeof(U);
  const int64_t units = c.bytes / kSize, n = c.count * units;
  copy_kernel<<<grid_for(cuda, n, 4), kBlock, 0, cuda.stream()>>>(reinterpret_cast<const U*>(c.from),
                                                                  reinterpret_cast<U*>(c.to), units,
                                                                  c.from_stride / kSize, c.to_stride / kSize, n);
  HT_LAUNCHED("copy_blocks");
}
}  // namespace

void copy_blocks_cuda(Context& ctx, const BlockCopy& c) {
  CudaContext& cuda = ctx.cuda();
  if (c.count == 1) {
    HT_CUDA_CALL(cudaMemcpyAsync(c.to, c.from, static_cast<size_t>(c.bytes), cudaMemcpyDeviceToDevice, cuda.stream()));
    return;
  }
  // The widest unit, up to 16 bytes, that divides every start, length and stride.
  int64_t unit = 16;
  for (const int64_t v : {static_cast<int64_t>(reinterpret_cast<intptr_t>(c.from)),
                          static_cast<int64_t>(reinterpret_cast<intptr_t>(c.to)), c.bytes, c.from_stride, c.to_stride})
    unit = std::gcd(unit, v);
  switch (unit) {
    case 16:
      return copy_as<uint4>(cuda, c);
    case 8:
      return copy_as<uint64_t>(cuda, c);
    case 4:
      return copy_as<uint32_t>(cuda, c);
    case 2:
      return copy_as<uint16_t>(cuda, c);
    default:
      return copy_as<uint8_t>(cuda, c);
  }
}

}  // namespace ht
