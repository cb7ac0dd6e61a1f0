// Small tensors read while the device goes on: the copy is queued behind the work so far and taken later.
#pragma once

#include <memory>
#include <vector>

#include "core/tensor.h"

namespace ht {

class HostCopy {
 public:
  virtual ~HostCopy() = default;
  // Queues a copy of what the tensors hold after all that is queued now; one that was not taken is forgotten.
  virtual void request() = 0;
  bool requested() const { return requested_; }
  // What was requested last, on the CPU. Waits for the work before that request, not for what came after it.
  virtual std::vector<Tensor> take() = 0;

 protected:
  bool requested_ = false;
};

// Of these tensors, which are on one device and keep their storage.
std::unique_ptr<HostCopy> make_host_copy(std::vector<Tensor> tensors);

// The CUDA side (core/cuda_host_copy.cpp).
std::unique_ptr<HostCopy> make_host_copy_cuda(std::vector<Tensor> tensors);

}  // namespace ht
