#include "core/cuda_kernels.cuh"
#include "ops/pad_channels.h"

namespace ht {

namespace {
template <class T>
__global__ void copy_channels_kernel(const T* from, int64_t from_channels, T* to, int64_t to_channels, int64_t n) {
  HT_GRID_STRIDE(i, n) {
    const int64_t row = i / to_channels, c = i % to_channels;
    to[i] = c < from_channels ? from[row * from_channels + c] : T{};
  }
}

template <class T>
__global__ void add_bias_kernel(const T* bias, T* y, int64_t channels, int64_t n) {
  HT_GRID_STRIDE(i, n) y[i] = store_as<T>(load_as(y[i]) + load_as(bias[i % channels]));
}
}  // namespace

void copy_channels_cuda(Context& ctx, const Tensor& from, const Tensor& to) {
  const int64_t n = to.numel();
  if (n == 0) return;
  dispatch_floating(from.dtype(), "copy_channels", [&]<class T>() {
    copy_channels_kernel<<<grid_for(ctx.cuda(), n, 2), kBlock, 0, ctx.cuda().stream()>>>(
        from.data<T>(), from.shape().back(), to.data<T>(), to.shape().back(), n);
    HT_LAUNCHED("copy_channels");
  });
}

void add_bias_cuda(Context& ctx, const Tensor& bias, const Tensor& y) {
  if (y.numel() == 0) return;
  dispatch_floating(y.dtype(), "add_bias", [&]<class T>() {
    add_bias_kernel<<<grid_for(ctx.cuda(), y.numel(), 2), kBlock, 0, ctx.cuda().stream()>>>(
        bias.data<T>(), y.data<T>(), y.shape().back(), y.numel());
    HT_LAUNCHED("add_bias");
  });
}

}  // namespace ht
