#include "core/cuda_context.h"

#include <cublasLt.h>

#include "core/context.h"
#include "core/copy.h"
#include "core/cuda_check.h"
#include "core/cudnn_check.h"

namespace ht {

namespace {
CudaLane make_lane(CudaStream stream) {
  CudaLane lane;
  lane.stream = stream;
  cudnn_check(cudnnCreate(&lane.cudnn), "cudnnCreate");
  cudnn_check(cudnnSetStream(lane.cudnn, stream), "cudnnSetStream");
  return lane;
}

std::string version3(size_t v) { return str(v / 10000, ".", v / 100 % 100, ".", v % 100); }

void check_versions() {
  const size_t loaded = cudnnGetVersion();
  check(loaded / 10000 == CUDNN_MAJOR && loaded >= CUDNN_VERSION, "context: cuDNN ", version3(loaded),
        " was loaded, but this build needs ", version3(CUDNN_VERSION),
        " or a newer one of the same major version; put the right libcudnn first on the library path");
}
}  // namespace

int cuda_device_count() {
  int n = 0;
  if (cudaGetDeviceCount(&n) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return n;
}

void* CudaLane::workspace_of(size_t bytes, int device) {
  if (bytes == 0) return nullptr;
  if (!workspace.defined() || workspace.bytes() < bytes) {
    HT_CUDA_CALL(cudaStreamSynchronize(stream));
    workspace = {};  // give the old one back first
    workspace = Tensor::empty({static_cast<int64_t>(bytes)}, DType::u8, Device::cuda(device));
  }
  return workspace.data();
}

std::shared_ptr<CudaContext> make_cuda_context(int device) {
  check_versions();
  HT_CUDA_CALL(cudaSetDevice(device));
  cudaDeviceProp properties{};
  HT_CUDA_CALL(cudaGetDeviceProperties(&properties, device));
  auto context = std::make_shared<CudaContext>();
  context->device = device;
  context->sm_count = properties.multiProcessorCount;
  context->l2_bytes = static_cast<size_t>(properties.l2CacheSize);
  context->gpu_name = properties.name;
  context->compute = properties.major * 10 + properties.minor;
  context->kernels = kernel_architecture();
  check(context->kernels > 0, "context: this build has kernels for sm_", HT_CUDA_ARCHITECTURES, ", but ",
        context->gpu_name, " is sm_", context->compute,
        "; configure with -DCMAKE_CUDA_ARCHITECTURES=", context->compute);
  context->main = make_lane(cuda_streams(device).main);
  context->side = make_lane(cuda_streams(device).side);
  HT_CUDA_CALL(cudaEventCreateWithFlags(&context->order_event, cudaEventDisableTiming));
  const cublasStatus_t status = cublasLtCreate(&context->cublas_lt);
  check(status == CUBLAS_STATUS_SUCCESS, "cublasLtCreate: ", cublasLtGetStatusString(status));
  // Not Tensor::zeros: a fill asks for this device's Context, which is only being made.
  context->rng_base = Tensor::empty({1}, DType::i64, Device::cuda(device));
  HT_CUDA_CALL(cudaMemsetAsync(context->rng_base.data(), 0, context->rng_base.bytes(), context->main.stream));
  return context;
}

CudaContext::~CudaContext() {
  // At process exit the driver may be gone already: leave everything to it then.
  if (cudaSetDevice(device) != cudaSuccess) return;
  if (cublas_lt) cublasLtDestroy(cublas_lt);
  for (CudaLane* lane : {&main, &side})
    if (lane->cudnn) cudnnDestroy(lane->cudnn);
  if (order_event) cudaEventDestroy(order_event);
}

void* CudaContext::zeros_of(size_t bytes) {
  if (!zeros_ || zeros_.bytes() < bytes)
    zeros_ = Tensor::zeros({static_cast<int64_t>(bytes)}, DType::u8, Device::cuda(device));
  return zeros_.data();
}

void CudaContext::order(const CudaLane& before, const CudaLane& after) {
  HT_CUDA_CALL(cudaEventRecord(order_event, before.stream));
  HT_CUDA_CALL(cudaStreamWaitEvent(after.stream, order_event, 0));
}

void synchronize_cuda(CudaContext& context) {
  HT_CUDA_CALL(cudaStreamSynchronize(context.side.stream));
  HT_CUDA_CALL(cudaStreamSynchronize(context.main.stream));
}

CudaMemory cuda_memory(int device) {
  CudaMemory m;
  int before = 0;
  cudaGetDevice(&before);
  cudaSetDevice(device);
  cudaMemGetInfo(&m.free, &m.total);
  cudaSetDevice(before);
  cudaGetLastError();
  return m;
}

std::string cuda_versions() {
  int runtime = 0, driver = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  cudaGetLastError();
  std::ostringstream out;
  out << "CUDA " << CUDART_VERSION / 1000 << '.' << CUDART_VERSION / 10 % 100 << " compiled, " << runtime / 1000 << '.'
      << runtime / 10 % 100 << " loaded, driver supports " << driver / 1000 << '.' << driver / 10 % 100 << '\n';
  out << "cuDNN " << version3(CUDNN_VERSION) << " compiled, " << version3(cudnnGetVersion()) << " loaded\n";
  out << "cuBLASLt " << version3(CUBLAS_VERSION) << " compiled, " << version3(cublasLtGetVersion()) << " loaded\n";
  out << "kernels for sm_" << HT_CUDA_ARCHITECTURES << '\n';
  for (int i = 0; i < cuda_device_count(); ++i) {
    cudaDeviceProp p{};
    if (cudaGetDeviceProperties(&p, i) == cudaSuccess)
      out << "cuda:" << i << ' ' << p.name << ", sm_" << p.major << p.minor << ", "
          << p.totalGlobalMem / (size_t{1} << 20) << " MiB\n";
  }
  return out.str();
}

PinnedBuffer::PinnedBuffer(size_t bytes) : bytes_(bytes) {
  if (bytes) HT_CUDA_CALL(cudaHostAlloc(&data_, bytes, cudaHostAllocDefault));
}

PinnedBuffer::~PinnedBuffer() {
  if (data_) cudaFreeHost(data_);
}

}  // namespace ht
