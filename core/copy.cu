#include "core/arithmetic.h"
#include "core/copy.h"
#include "core/cuda_kernels.cuh"

namespace ht {

namespace {
// Half conversions by one instruction, everything else by the formula that the CPU uses.
template <class To, class From>
__device__ To convert(From v) {
  constexpr bool kToHalf = std::is_same_v<To, Half> || std::is_same_v<To, BFloat16>;
  if constexpr (kToHalf && !std::is_same_v<To, From>) {
    return store_as<To>(load_as(v));
  } else if constexpr (kToHalf) {
    return v;
  } else {
    return convert_element<To>(load_as(v));
  }
}

template <class From, class To>
__global__ void convert_kernel(const From* in, To* out, int64_t n) {
  let_next_start();
  wait_for_previous();
  HT_GRID_STRIDE(i, n) out[i] = convert<To>(in[i]);
}

template <class T>
__global__ void fill_kernel(T* out, T value, int64_t n) {
  let_next_start();
  wait_for_previous();
  HT_GRID_STRIDE(i, n) out[i] = value;
}

template <class T, class F>
__global__ void add_kernel(T* to, const F* from, int64_t n) {
  using A = acc_t<T>;
  HT_GRID_STRIDE(i, n) to[i] = store_as<T>(load_as(to[i]) + static_cast<A>(load_as(from[i])));
}

__global__ void probe_kernel() {}

CudaContext& cuda_of(const Tensor& t) { return Context::of(t.device()).cuda(); }

void convert_on_device(const Tensor& from, const Tensor& to) {
  CudaContext& cuda = cuda_of(to);
  dispatch_all(from.dtype(), [&]<class From>() {
    dispatch_all(to.dtype(), [&]<class To>() {
      launch_early(cuda, convert_kernel<From, To>, grid_for(cuda, to.numel(), 4), kBlock, from.data<From>(),
                   to.data<To>(), to.numel());
    });
  });
}
}  // namespace

int kernel_architecture() {
  cudaFuncAttributes attributes{};
  const bool ok = cudaFuncGetAttributes(&attributes, probe_kernel) == cudaSuccess;
  cudaGetLastError();
  // Not binaryVersion: code for an older one may be compiled for this device.
  return ok ? std::max(attributes.ptxVersion, 1) : 0;
}

void copy_cuda(const Tensor& from, const Tensor& to) {
  if (from.device() == to.device()) {
    // A short copy costs its launch: a kernel's can begin early.
    if (from.dtype() != to.dtype() || to.numel() <= kBlock) return convert_on_device(from, to);
    HT_CUDA_CALL(cudaMemcpyAsync(to.data(), from.data(), to.bytes(), cudaMemcpyDeviceToDevice, cuda_of(to).stream()));
  } else if (from.dtype() != to.dtype()) {  // convert where it is cheap: on the device
    if (to.device().is_cuda()) {
      convert_on_device(from.to(to.device()), to);
    } else {
      to.copy_(from.to(to.dtype()));
    }
  } else {
    CudaContext& cuda = cuda_of(from.device().is_cuda() ? from : to);
    HT_CUDA_CALL(cudaMemcpyAsync(to.data(), from.data(), to.bytes(), cudaMemcpyDefault, cuda.stream()));
    HT_CUDA_CALL(cudaStreamSynchronize(cuda.stream()));  // the host side may go away or be read right after
  }
}

void fill_cuda(const Tensor& t, double value) {
  if (t.numel() == 0) return;
  CudaContext& cuda = cuda_of(t);
  if (value == 0 && !std::signbit(value)) {
    HT_CUDA_CALL(cudaMemsetAsync(t.data(), 0, t.bytes(), cuda.stream()));
    return;
  }
  dispatch_all(t.dtype(), [&]<class T>() {
    const T v = convert_element<T>(value);
    launch_early(cuda, fill_kernel<T>, grid_for(cuda, t.numel(), 4), kBlock, t.data<T>(), v, t.numel());
  });
}

void add_into_cuda(const Tensor& to, const Tensor& from) {
  if (to.numel() == 0) return;
  CudaContext& cuda = cuda_of(to);
  if (to.dtype() == DType::i64 && from.dtype() == DType::i64) {  // counters
    add_kernel<<<grid_for(cuda, to.numel()), kBlock, 0, cuda.stream()>>>(to.data<int64_t>(), from.data<int64_t>(),
                                                                         to.numel());
    HT_LAUNCHED("add_into");
    return;
  }
  dispatch_floating(to.dtype(), "add_into", [&]<class T>() {
    dispatch_floating(from.dtype(), "add_into", [&]<class F>() {
      add_kernel<<<grid_for(cuda, to.numel(), 4), kBlock, 0, cuda.stream()>>>(to.data<T>(), from.data<F>(), to.numel());
      HT_LAUNCHED("add_into");
    });
  });
}

}  // namespace ht
