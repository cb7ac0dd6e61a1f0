// For tests that need a CUDA device: skipped, and said so, where there is none.
#pragma once

#include <doctest/doctest.h>

#include "core/context.h"

#define HT_NEEDS_CUDA()                                                                      \
  if (::ht::cuda_device_count() == 0) {                                                      \
    MESSAGE("SKIPPED: no CUDA device (", ::ht::kCudaBuild ? "CUDA" : "CPU-only", " build)"); \
    return;                                                                                  \
  }
