#include <cuda_runtime.h>

#include <cstring>
#include <utility>

#include "core/context.h"
#include "core/cuda_check.h"
#include "core/cuda_context.h"
#include "core/host_copy.h"

namespace ht {

namespace {
class CudaCopy final : public HostCopy {
 public:
  explicit CudaCopy(std::vector<Tensor> tensors)
      : tensors_(std::move(tensors)), cuda_(Context::of(tensors_[0].device()).cuda()), buffer_(total_bytes(tensors_)) {
    HT_CUDA_CALL(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming));
  }
  ~CudaCopy() override {
    cudaEventSynchronize(done_);  // the buffer is written till then
    cudaEventDestroy(done_);
  }

  void request() override {
    size_t at = 0;
    for (const Tensor& t : tensors_) {
      HT_CUDA_CALL(cudaMemcpyAsync(bytes() + at, t.data(), t.bytes(), cudaMemcpyDeviceToHost, cuda_.stream()));
      at += t.bytes();
    }
    HT_CUDA_CALL(cudaEventRecord(done_, cuda_.stream()));
    requested_ = true;
  }
  std::vector<Tensor> take() override {
    HT_CUDA_CALL(cudaEventSynchronize(done_));
    requested_ = false;
    std::vector<Tensor> copies;
    size_t at = 0;
    for (const Tensor& t : tensors_) {
      copies.push_back(Tensor::empty(t.shape(), t.dtype()));
      std::memcpy(copies.back().data(), bytes() + at, t.bytes());
      at += t.bytes();
    }
    return copies;
  }

 private:
  static size_t total_bytes(const std::vector<Tensor>& tensors) {
    size_t sum = 0;
    for (const Tensor& t : tensors) sum += t.bytes();
    return sum;
  }
  char* bytes() { return static_cast<char*>(buffer_.data()); }

  std::vector<Tensor> tensors_;
  CudaContext& cuda_;
  PinnedBuffer buffer_;
  cudaEvent_t done_ = nullptr;
};
}  // namespace

std::unique_ptr<HostCopy> make_host_copy_cuda(std::vector<Tensor> tensors) {
  return std::make_unique<CudaCopy>(std::move(tensors));
}

}  // namespace ht
