// Gradient clipping on CUDA: the norm never leaves the device.
#include <cfloat>

#include "optim/clip.h"
#include "optim/multi_tensor.cuh"

namespace ht::optim {

namespace {
template <class G>
__global__ void __launch_bounds__(kBlock) squares_kernel(const G* grad, int64_t n, double* partial) {
  double sum = 0;
  HT_GRID_STRIDE(i, n) {
    const double g = static_cast<double>(load_as(grad[i]));
    sum += g * g;
  }
  __shared__ double shared[kBlock];
  shared[threadIdx.x] = sum;
  for (int half = kBlock / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) shared[threadIdx.x] += shared[threadIdx.x + half];
  }
  if (threadIdx.x == 0) partial[blockIdx.x] = shared[0];
}

// One thread adds the partial sums in order: the same bits every run.
__global__ void norm_kernel(const double* partial, int64_t n, double* norm) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += partial[i];
  *norm = sqrt(sum);
}

template <class G>
__global__ void scale_kernel(G* grad, int64_t n, const double* norm, double max_norm) {
  const double factor = max_norm / (*norm + 1e-6);
  if (factor >= 1) return;
  HT_GRID_STRIDE(i, n) grad[i] = store_as<G>(load_as(grad[i]) * static_cast<acc_t<G>>(factor));
}

template <class G>
__global__ void clamp_kernel(G* grad, int64_t n, double value) {
  using A = acc_t<G>;
  const A limit = static_cast<A>(value);
  HT_GRID_STRIDE(i, n) {
    const A g = load_as(grad[i]);
    grad[i] = store_as<G>(g > limit ? limit : g < -limit ? -limit : g);
  }
}

constexpr int kBlocksPerTensor = 64;
}  // namespace

Tensor clip_grad_norm_cuda(std::span<const Tensor> grads, double max_norm) {
  CudaContext& cuda = Context::of(grads.front().device()).cuda();
  const int64_t parts = static_cast<int64_t>(grads.size()) * kBlocksPerTensor;
  const Tensor partial = Tensor::zeros({parts}, DType::f64, grads.front().device());
  const Tensor norm = Tensor::empty({}, DType::f64, grads.front().device());
  for (size_t k = 0; k < grads.size(); ++k)
    dispatch_floating(grads[k].dtype(), "clip_grad_norm_", [&]<class G>() {
      squares_kernel<<<kBlocksPerTensor, kBlock, 0, cuda.stream()>>>(
          grads[k].data<G>(), grads[k].numel(), partial.data<double>() + static_cast<int64_t>(k) * kBlocksPerTensor);
      HT_LAUNCHED("squares");
    });
  norm_kernel<<<1, 1, 0, cuda.stream()>>>(partial.data<double>(), parts, norm.data<double>());
  HT_LAUNCHED("norm");
  if (std::isinf(max_norm)) return norm;
  for (const Tensor& g : grads) {
    dispatch_floating(g.dtype(), "clip_grad_norm_", [&]<class G>() {
      scale_kernel<<<grid_for(cuda, g.numel(), 4), kBlock, 0, cuda.stream()>>>(g.data<G>(), g.numel(),
                                                                               norm.data<double>(), max_norm);
      HT_LAUNCHED("scale gradients");
    });
    g.bump_version();
  }
  return norm;
}

void clip_grad_value_cuda(std::span<const Tensor> grads, double value) {
  CudaContext& cuda = Context::of(grads.front().device()).cuda();
  for (const Tensor& g : grads) {
    dispatch_floating(g.dtype(), "clip_grad_value_", [&]<class G>() {
      clamp_kernel<<<grid_for(cuda, g.numel(), 4), kBlock, 0, cuda.stream()>>>(g.data<G>(), g.numel(), value);
      HT_LAUNCHED("clamp gradients");
    });
    g.bump_version();
  }
}

}  // namespace ht::optim
