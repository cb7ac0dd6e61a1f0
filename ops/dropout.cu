#include "core/cuda_kernels.cuh"
#include "ops/dropout.h"

namespace ht {

namespace {
// A thread takes four neighbouring elements: one Philox block.
template <class T>
__global__ void dropout_kernel(DropoutMask mask, const int64_t* rng_base, const T* x, T* y, int64_t n) {
  using A = acc_t<T>;
  PhiloxStream stream = mask.stream;
  stream.stream += static_cast<uint64_t>(*rng_base);
  const A scale = static_cast<A>(mask.scale);
  HT_GRID_STRIDE(b, (n + 3) / 4) {
    const Philox4 bits = stream.block(static_cast<uint64_t>(b));
    for (int k = 0; k < 4 && 4 * b + k < n; ++k)
      y[4 * b + k] =
          mask.keeps(bits[static_cast<size_t>(k)]) ? store_as<T>(load_as(x[4 * b + k]) * scale) : store_as<T>(A(0));
  }
}
}  // namespace

void dropout_cuda(Context& ctx, const DropoutMask& mask, const Tensor& x, const Tensor& y) {
  if (x.numel() == 0) return;
  CudaContext& cuda = ctx.cuda();
  dispatch_floating(x.dtype(), "dropout", [&]<class T>() {
    dropout_kernel<<<grid_for(cuda, x.numel(), 4), kBlock, 0, cuda.stream()>>>(mask, cuda.rng_base.data<int64_t>(),
                                                                               x.data<T>(), y.data<T>(), x.numel());
    HT_LAUNCHED("dropout");
  });
}

}  // namespace ht
