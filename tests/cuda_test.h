// For tests that need a CUDA device, or much of its memory: skipped, and said so, where there is none.
#pragma once

#include <doctest/doctest.h>

#include <string>

#include "core/context.h"
#include "core/cuda_context.h"

#define HT_NEEDS_CUDA()                                                                                           \
  if (::ht::cuda_device_count() == 0) {                                                                           \
    MESSAGE("SKIPPED: no CUDA device in a ", std::string(::ht::cuda_is_built() ? "CUDA" : "CPU-only"), " build"); \
    return;                                                                                                       \
  }

#define HT_NEEDS_GPU_MEMORY(gib)                                                            \
  HT_NEEDS_CUDA();                                                                          \
  if (::ht::free_gpu_gib() < (gib)) {                                                       \
    MESSAGE("SKIPPED: needs ", gib, " GiB of GPU memory, ", ::ht::free_gpu_gib(), " free"); \
    return;                                                                                 \
  }

namespace ht {

// Of device 0, as the driver reports it.
inline double free_gpu_gib() { return static_cast<double>(cuda_memory(0).free) / (1 << 30); }

}  // namespace ht
