// Batches made on the device from bytes that stay there: a block takes one image, a thread its pixels.
#include "core/cuda_kernels.cuh"
#include "data/augment.h"

namespace ht::data {

namespace {
constexpr int kPixelThreads = 256;

template <class T>
__global__ void __launch_bounds__(kPixelThreads)
    augment_kernel(const uint8_t* images, const int32_t* labels, const int32_t* order, int64_t* cursor, int64_t stride,
                   AugmentOptions options, const T* table, uint64_t seed, int h, int w, T* x, int32_t* y) {
  __shared__ T values[3 * 256];
  __shared__ Augmentation a;
  __shared__ int32_t index;
  let_next_start();
  for (int i = static_cast<int>(threadIdx.x); i < 3 * 256; i += kPixelThreads) values[i] = table[i];
  if (threadIdx.x == 0) {
    index = order[cursor[0] + blockIdx.x];
    a = augmentation(options, seed, static_cast<uint64_t>(cursor[1]), index, h, w);
  }
  __syncthreads();
  if (threadIdx.x == 0) {  // while the others go on
    y[blockIdx.x] = labels[index];
    __threadfence();
    // The last block to have read the cursor moves it.
    if (atomicInc(reinterpret_cast<unsigned*>(cursor + 2), gridDim.x - 1) == gridDim.x - 1) cursor[0] += stride;
  }
  const uint8_t* from = images + int64_t{index} * h * w * 3;
  T* to = x + int64_t{blockIdx.x} * h * w * 3;
  constexpr int kAtOnce = 4;  // pixels, whose loads all go out before the first store
  for (int first = static_cast<int>(threadIdx.x); first < h * w; first += kAtOnce * kPixelThreads) {
    uint8_t pixel[kAtOnce][3];
    bool kept[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int p = min(first + u * kPixelThreads, h * w - 1);
      int from_y, from_x;
      kept[u] = source_pixel(a, p / w, p % w, h, w, from_y, from_x);
      const int offset = kept[u] ? (from_y * w + from_x) * 3 : 0;
#pragma unroll
      for (int c = 0; c < 3; ++c) pixel[u][c] = from[offset + c];
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int p = first + u * kPixelThreads;
      if (p >= h * w) break;
#pragma unroll
      for (int c = 0; c < 3; ++c) to[p * 3 + c] = kept[u] ? values[256 * c + pixel[u][c]] : T(0.0f);
    }
  }
}
}  // namespace

void augment_cuda(const Tensor& images, const Tensor& labels, const Tensor& order, const Tensor& cursor, int64_t stride,
                  const AugmentOptions& options, const Tensor& table, uint64_t seed, const Tensor& x, const Tensor& y) {
  if (y.numel() == 0) return;
  CudaContext& cuda = Context::of(x.device()).cuda();
  dispatch_floating(x.dtype(), "augment", [&]<class T>() {
    augment_kernel<<<static_cast<unsigned>(y.numel()), kPixelThreads, 0, cuda.stream()>>>(
        images.data<uint8_t>(), labels.data<int32_t>(), order.data<int32_t>(), cursor.data<int64_t>(), stride, options,
        table.data<T>(), seed, static_cast<int>(images.dim(1)), static_cast<int>(images.dim(2)), x.data<T>(),
        y.data<int32_t>());
    HT_LAUNCHED("augment");
  });
}

}  // namespace ht::data
