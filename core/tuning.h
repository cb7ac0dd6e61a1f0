// How the device libraries may work; no effect on the CPU.
#pragma once

#include <cstddef>

namespace ht {

// TF32 for FP32 convolutions and matrix products; off by default, so that FP32 means FP32.
void set_tf32(bool on);
bool tf32();
// Largest workspace a plan may ask for, in bytes (default 1 GiB).
void set_workspace_limit(size_t bytes);
size_t workspace_limit();

}  // namespace ht
