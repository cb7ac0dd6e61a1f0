// One test body, a test on the CPU and another on CUDA (skipped, and said so, where there is no device).
#pragma once

#include "tests/cuda_test.h"

#define HT_ON_DEVICES(name, body)                \
  TEST_CASE(name) { body(::ht::Device::cpu()); } \
  TEST_CASE("cuda: " name) {                     \
    HT_NEEDS_CUDA();                             \
    body(::ht::Device::cuda());                  \
  }
