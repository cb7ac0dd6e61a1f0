// global_avg_pool2d on CUDA: a block takes an image and 32 channels at a time; its 8 rows of threads share the pixels.
#include "ops/pool.cuh"

namespace ht {

namespace {
constexpr int kChannels = 32, kRows = 8;

template <class T>
__global__ void forward_kernel(const T* x, T* y, int64_t images, int64_t pixels, int64_t channels) {
  using A = acc_t<T>;
  const int64_t tiles = (channels + kChannels - 1) / kChannels;
  __shared__ A shared[kRows][kChannels];
  for (int64_t tile = blockIdx.x; tile < images * tiles; tile += gridDim.x) {
    const int64_t n = tile / tiles, c = tile % tiles * kChannels + threadIdx.x;
    A sum = 0;
    if (c < channels)
      for (int64_t p = threadIdx.y; p < pixels; p += kRows) sum += load_as(x[(n * pixels + p) * channels + c]);
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && c < channels) {
      for (int r = 1; r < kRows; ++r) sum += shared[r][threadIdx.x];
      y[n * channels + c] = store_as<T>(sum / static_cast<A>(pixels));
    }
    __syncthreads();
  }
}

template <class T>
__global__ void backward_kernel(const T* dy, T* dx, int64_t pixels, int64_t channels, int64_t total) {
  using A = acc_t<T>;
  const A share = A(1) / static_cast<A>(pixels);
  HT_GRID_STRIDE(i, total) {
    const int64_t c = i % channels, n = i / channels / pixels;
    dx[i] = store_as<T>(load_as(dy[n * channels + c]) * share);
  }
}
}  // namespace

void global_avg_pool2d_forward_cuda(Context& ctx, const Tensor& x, const Tensor& y) {
  if (y.numel() == 0) return;
  const int64_t channels = x.dim(3), pixels = x.dim(1) * x.dim(2);
  const unsigned grid = grid_for(ctx.cuda(), y.numel() * kRows, 1, 64);
  dispatch_floating(x.dtype(), "global_avg_pool2d", [&]<class T>() {
    forward_kernel<T><<<grid, dim3(kChannels, kRows), 0, ctx.cuda().stream()>>>(x.data<T>(), y.data<T>(), x.dim(0),
                                                                                pixels, channels);
    HT_LAUNCHED("global_avg_pool2d forward");
  });
}

void global_avg_pool2d_backward_cuda(Context& ctx, const Tensor& dy, const Tensor& dx) {
  if (dx.numel() == 0) return;
  dispatch_floating(dx.dtype(), "global_avg_pool2d", [&]<class T>() {
    backward_kernel<T><<<grid_for(ctx.cuda(), dx.numel(), 4), kBlock, 0, ctx.cuda().stream()>>>(
        dy.data<T>(), dx.data<T>(), dx.dim(1) * dx.dim(2), dx.dim(3), dx.numel());
    HT_LAUNCHED("global_avg_pool2d backward");
  });
}

}  // namespace ht
