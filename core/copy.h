// The device side of Tensor's copies and fills (core/copy.cu); CUDA builds only.
#pragma once

#include "core/tensor.h"

namespace ht {

// Copies between any two devices, at least one CUDA, converting dtype on the device. From or to the CPU it waits.
void copy_cuda(const Tensor& from, const Tensor& to);
void fill_cuda(const Tensor& t, double value);
// The architecture (90) that those kernels of this build are written for that the current device runs; 0: it runs none.
int kernel_architecture();

}  // namespace ht
