// The benchmark's methods by name: fp32, tf32, fp16 (half network, FP32 masters, loss scale 128), amp (O1), bf16,
// o2.
#pragma once

#include <string>
#include <vector>

#include "amp/options.h"
#include "core/dtype.h"
#include "core/tuning.h"

namespace bench {

inline const std::vector<std::string> kMethods{"fp32", "tf32", "fp16", "amp", "bf16", "o2"};

inline ht::amp::Level level_of(const std::string& method) {
  if (method == "amp") return ht::amp::O1;
  if (method == "fp16") return ht::amp::fp16;
  if (method == "bf16") return ht::amp::bf16;
  if (method == "o2") return ht::amp::O2;
  return ht::amp::O0;
}

// What its matrix products take.
inline ht::DType dtype_of(const std::string& method) {
  if (method == "bf16") return ht::DType::bf16;
  return method == "fp32" || method == "tf32" ? ht::DType::f32 : ht::DType::f16;
}

// The part of a method that is the process's, not the network's.
inline void use_method(const std::string& method) { ht::set_tf32(method == "tf32"); }

}  // namespace bench
