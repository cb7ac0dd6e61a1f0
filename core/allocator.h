// One caching allocator for every device: blocks are cut from large segments, best fit, and merged when freed, so that
// a training loop asks the system for memory in its first steps only (on the CPU: no page faults later).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/device.h"

namespace ht {

struct MemoryStats {
  size_t allocated = 0;  // bytes in live tensors
  size_t peak = 0;       // highest `allocated` since reset_peak_memory
  size_t reserved = 0;   // bytes held from the system; reserved - allocated are cached
  size_t cached() const { return reserved - allocated; }
};

MemoryStats memory_stats(Device device = Device::cpu());
void reset_peak_memory(Device device = Device::cpu());
// Gives every wholly free segment back to the system.
void empty_cache(Device device = Device::cpu());
// Largest `reserved` allowed, in bytes; 0 lifts the limit. An allocation beyond it throws Error (out of memory).
void set_memory_limit(size_t bytes, Device device = Device::cpu());

// At least `bytes` bytes, aligned to 256 (nullptr for 0). Throws Error saying asked, allocated, cached and free bytes.
void* allocate(size_t bytes, Device device);
void deallocate(void* ptr, Device device) noexcept;

// While alive, every new tensor is filled with 0xFF bytes (NaN in all floating dtypes), so that an element that an op
// forgets to write shows. Used by gradcheck. CPU tensors only.
class PoisonGuard {
 public:
  PoisonGuard();
  ~PoisonGuard();
  PoisonGuard(const PoisonGuard&) = delete;
  PoisonGuard& operator=(const PoisonGuard&) = delete;
};

}  // namespace ht
