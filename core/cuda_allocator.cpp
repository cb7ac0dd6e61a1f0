// Device memory in stream order: a freed block is reused by work that the main stream runs later. Where the side stream
// may still use it, the main stream waits for that first.
#include <array>
#include <map>
#include <mutex>

#include "core/caching_allocator.h"
#include "core/cuda_check.h"
#include "core/cuda_context.h"

namespace ht {

namespace {
// cudaMalloc and cudaFree are no stream operations: legal while this thread captures, if it says so.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

class CudaAllocator final : public CachingAllocator {
 public:
  explicit CudaAllocator(int index) : CachingAllocator(Device::cuda(index)), index_(index) {
    const CudaDeviceGuard guard(index);
    int low = 0, high = 0;
    HT_CUDA_CALL(cudaDeviceGetStreamPriorityRange(&low, &high));
    HT_CUDA_CALL(cudaStreamCreateWithPriority(&streams_.main, cudaStreamNonBlocking, high));
    HT_CUDA_CALL(cudaStreamCreateWithPriority(&streams_.side, cudaStreamNonBlocking, low));
    for (cudaEvent_t& event : events_) HT_CUDA_CALL(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }

  const CudaStreams& streams() const { return streams_; }

  uint64_t ticket() {
    const std::lock_guard lock(mutex_);
    ++issued_;
    HT_CUDA_CALL(cudaEventRecord(event_of(issued_), streams_.side));
    return issued_;
  }
  void join() {
    const std::lock_guard lock(mutex_);
    wait(issued_);
  }

 protected:
  void* system_allocate(size_t bytes) override {
    const CudaDeviceGuard guard(index_);
    const RelaxedCapture relaxed;
    void* p = nullptr;
    const cudaError_t status = cudaMalloc(&p, bytes);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    cuda_check(status, "cudaMalloc", __FILE__, __LINE__);
    return p;
  }
  void system_free(void* ptr, size_t) noexcept override {
    const RelaxedCapture relaxed;
    cudaFree(ptr);  // waits for the device: nobody uses the block any more
    cudaGetLastError();
  }
  size_t system_available() const override { return cuda_memory(index_).free; }
  bool is_done(uint64_t ticket) const override {
    const std::lock_guard lock(mutex_);
    return ticket <= waited_;
  }
  void wait_for(uint64_t ticket) override {
    const std::lock_guard lock(mutex_);
    wait(ticket);
  }

 private:
  // An event that stands for later work too serves an older ticket as well.
  cudaEvent_t& event_of(uint64_t ticket) { return events_[ticket % events_.size()]; }
  void wait(uint64_t ticket) {
    if (ticket <= waited_) return;
    HT_CUDA_CALL(cudaStreamWaitEvent(streams_.main, event_of(ticket), 0));
    waited_ = ticket;
  }

  int index_;
  CudaStreams streams_;
  mutable std::mutex mutex_;
  std::array<cudaEvent_t, 64> events_{};
  uint64_t issued_ = 0;
  uint64_t waited_ = 0;  // the main stream waits for all up to this one
};

CudaAllocator& allocator_at(int index) {
  static std::mutex mutex;
  // Leaked on purpose: a CUDA call in a static destructor would find the driver gone.
  static auto& allocators = *new std::map<int, CudaAllocator*>;
  const std::lock_guard lock(mutex);
  auto& slot = allocators[index];
  if (!slot) slot = new CudaAllocator(index);
  return *slot;
}
}  // namespace

CudaDeviceGuard::CudaDeviceGuard(int device) {
  HT_CUDA_CALL(cudaGetDevice(&before_));
  HT_CUDA_CALL(cudaSetDevice(device));
}
CudaDeviceGuard::~CudaDeviceGuard() { cudaSetDevice(before_); }

CachingAllocator& cuda_allocator(int index) { return allocator_at(index); }
const CudaStreams& cuda_streams(int index) { return allocator_at(index).streams(); }

void CudaContext::keep(std::initializer_list<Tensor> used) {
  CudaAllocator& allocator = allocator_at(device);
  const uint64_t ticket = allocator.ticket();
  for (const Tensor& t : used)
    if (t.numel() > 0) allocator.keep_until(t.storage_data(), ticket);
}

void CudaContext::join() { allocator_at(device).join(); }

}  // namespace ht
