// transpose on CUDA: tiles of 32 x 32 go through shared memory, so that both sides are read and written in order.
#include "core/cuda_kernels.cuh"
#include "ops/transpose.h"

namespace ht {

namespace {
constexpr int kTile = 32, kTileRows = 8;

// Any plan: neighbours write neighbouring elements of y.
template <class T>
__global__ void general_kernel(TransposePlan p, const T* x, T* y, int64_t n) {
  HT_GRID_STRIDE(i, n) {
    const int64_t inner = i % p.inner, row = i / p.inner % p.rows, middle = i / p.inner / p.rows % p.middle;
    const int64_t rest = i / p.inner / p.rows / p.middle, column = rest % p.columns, outer = rest / p.columns;
    y[i] = x[(((outer * p.rows + row) * p.middle + middle) * p.columns + column) * p.inner + inner];
  }
}

// A matrix a batch: middle and inner are 1.
template <class T>
__global__ void matrix_kernel(const T* x, T* y, int64_t rows, int64_t columns) {
  __shared__ T tile[kTile][kTile + 1];
  const int64_t batch = int64_t{blockIdx.z} * rows * columns;
  const int64_t r0 = int64_t{blockIdx.y} * kTile, c0 = int64_t{blockIdx.x} * kTile;
  for (int k = static_cast<int>(threadIdx.y); k < kTile; k += kTileRows)
    if (r0 + k < rows && c0 + threadIdx.x < columns)
      tile[k][threadIdx.x] = x[batch + (r0 + k) * columns + c0 + threadIdx.x];
  __syncthreads();
  for (int k = static_cast<int>(threadIdx.y); k < kTile; k += kTileRows)
    if (c0 + k < columns && r0 + threadIdx.x < rows)
      y[batch + (c0 + k) * rows + r0 + threadIdx.x] = tile[threadIdx.x][k];
}

template <class T>
void transpose_as(Context& ctx, const TransposePlan& p, const Tensor& x, const Tensor& y) {
  const T* from = static_cast<const T*>(x.data());
  T* to = static_cast<T*>(y.data());
  const CudaStream stream = ctx.cuda().stream();
  const int64_t tile_rows = (p.rows + kTile - 1) / kTile, tile_columns = (p.columns + kTile - 1) / kTile;
  if (p.middle == 1 && p.inner == 1 && p.outer <= 65535 && tile_rows <= 65535) {
    const dim3 grid(static_cast<unsigned>(tile_columns), static_cast<unsigned>(tile_rows),
                    static_cast<unsigned>(p.outer));
    matrix_kernel<<<grid, dim3(kTile, kTileRows), 0, stream>>>(from, to, p.rows, p.columns);
  } else {
    general_kernel<<<grid_for(ctx.cuda(), x.numel(), 4), kBlock, 0, stream>>>(p, from, to, x.numel());
  }
  HT_LAUNCHED("transpose");
}
}  // namespace

void transpose_cuda(Context& ctx, const TransposePlan& plan, const Tensor& x, const Tensor& y) {
  if (x.numel() == 0) return;
  switch (size_of(x.dtype())) {  // only bytes move
    case 1:
      return transpose_as<uint8_t>(ctx, plan, x, y);
    case 2:
      return transpose_as<uint16_t>(ctx, plan, x, y);
    case 4:
      return transpose_as<uint32_t>(ctx, plan, x, y);
    default:
      return transpose_as<uint64_t>(ctx, plan, x, y);
  }
}

}  // namespace ht
