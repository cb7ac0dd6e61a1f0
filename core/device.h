// Where a tensor lives.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string_view>

namespace ht {

enum class DeviceType : uint8_t { cpu, cuda };

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;

  static constexpr Device cpu() { return {DeviceType::cpu, 0}; }
  static constexpr Device cuda(int index = 0) { return {DeviceType::cuda, index}; }
  // "cpu", "cuda" or "cuda:1"; throws Error on anything else.
  static Device parse(std::string_view text);

  constexpr bool is_cuda() const { return type == DeviceType::cuda; }
  friend constexpr bool operator==(Device, Device) = default;
};

std::ostream& operator<<(std::ostream& out, Device d);  // "cpu", "cuda:0"

// How many CUDA devices this process can use; 0 in a CPU-only build or without a driver. Never throws.
int cuda_device_count();
// Whether this is a CUDA build.
bool cuda_is_built();

}  // namespace ht
