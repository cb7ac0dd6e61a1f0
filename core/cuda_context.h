// The CUDA side of a Context: streams, library handles, workspaces, device facts. No vendor headers here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include "core/tensor.h"

struct CUstream_st;
struct CUevent_st;
struct cudnnContext;
struct cublasLtContext;

namespace ht {

using CudaStream = CUstream_st*;

// One order of work: a stream with the cuDNN handle and the workspace that belong to it.
struct CudaLane {
  CudaStream stream = nullptr;
  cudnnContext* cudnn = nullptr;
  Tensor workspace;  // u8, grows on demand

  // At least `bytes` bytes, valid for work queued on this lane until the next request.
  void* workspace_of(size_t bytes, int device);
};

struct CudaContext {
  int device = 0;
  int sm_count = 0;
  size_t l2_bytes = 0;
  std::string gpu_name;  // "NVIDIA H200"
  int compute = 0;       // 90 for sm_90
  int kernels = 0;       // the same of our kernels that run here, at most `compute`
  CudaLane main, side;   // side: work beside the main chain, joined by events
  cublasLtContext* cublas_lt = nullptr;
  // At least `bytes` zeros that a kernel on the main lane may use if it leaves them zeros.
  void* zeros_of(size_t bytes);
  Tensor rng_base;  // i64 [1]: added to every Philox stream number, so that a captured step can move it

  CudaStream stream() const { return main.stream; }
  // Order between the lanes: what was queued on `before` so far happens before what is queued on `after` from now on.
  void order(const CudaLane& before, const CudaLane& after);
  // Queues work(side) beside the main chain, after what main has queued so far. `used` is what it reads and writes:
  // their memory is not given to others before it is done. join() makes main wait for all such work.
  template <class F>
  void beside(std::initializer_list<Tensor> used, F&& work) {
    if (!overlap) return work(main);
    order(main, side);
    work(side);
    keep(used);
  }
  void join();

  CudaContext() = default;
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  CUevent_st* order_event = nullptr;
  bool overlap = true;  // false: beside() queues on the main lane, one thing after the other, as a profile wants it

 private:
  void keep(std::initializer_list<Tensor> used);

  Tensor zeros_;
};

// Throws Error when the device cannot run this build: no kernel image, cuDNN too old, out of memory.
std::shared_ptr<CudaContext> make_cuda_context(int device);
void synchronize_cuda(CudaContext& context);

// Of a device, for the whole process: all tensors are ordered by the main one, which has priority.
struct CudaStreams {
  CudaStream main = nullptr, side = nullptr;
};
const CudaStreams& cuda_streams(int device);

// Makes a device current for a scope: contexts of several devices may live on one thread.
class CudaDeviceGuard {
 public:
  explicit CudaDeviceGuard(int device);
  ~CudaDeviceGuard();
  CudaDeviceGuard(const CudaDeviceGuard&) = delete;
  CudaDeviceGuard& operator=(const CudaDeviceGuard&) = delete;

 private:
  int before_ = 0;
};

// Compiled and loaded versions, one a line: CUDA, driver, cuDNN, cuBLASLt, GPU.
std::string cuda_versions();

// Bytes of device memory free now, and in all, as the driver reports them.
struct CudaMemory {
  size_t free = 0, total = 0;
};
CudaMemory cuda_memory(int device);

// Host memory that the device copies to and from without a stop.
class PinnedBuffer {
 public:
  explicit PinnedBuffer(size_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

}  // namespace ht
