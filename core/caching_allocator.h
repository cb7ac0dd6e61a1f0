// The bookkeeping behind core/allocator.h: independent of where the memory comes from.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>

#include "core/allocator.h"

namespace ht {

// Best-fit allocator over segments taken from a system source. Thread-safe.
class CachingAllocator {
 public:
  explicit CachingAllocator(Device device) : device_(device) {}
  virtual ~CachingAllocator() = default;

  void* allocate(size_t bytes);
  void deallocate(void* ptr) noexcept;
  MemoryStats stats() const;
  void reset_peak();
  void empty_cache();
  void set_limit(size_t bytes);

 protected:
  virtual void* system_allocate(size_t bytes) = 0;  // nullptr when the system has no more
  virtual void system_free(void* ptr, size_t bytes) noexcept = 0;
  virtual size_t system_available() const = 0;  // bytes, for the out-of-memory text

 private:
  struct Block {
    char* ptr;
    size_t size;
    bool free;
    Block* prev = nullptr;  // neighbours in the same segment
    Block* next = nullptr;
  };
  struct BySize {
    bool operator()(const Block* a, const Block* b) const {
      return a->size != b->size ? a->size < b->size : a->ptr < b->ptr;
    }
  };

  Block* take_free(size_t size);
  Block* grow(size_t size, size_t asked);
  void split(Block* block, size_t size);
  void absorb_next(Block* block);
  void release_free_segments();

  const Device device_;
  mutable std::mutex mutex_;
  MemoryStats stats_;
  size_t limit_ = 0;
  std::set<Block*, BySize> free_;
  std::unordered_map<void*, Block*> live_;
  std::unordered_map<Block*, std::unique_ptr<Block>> blocks_;
};

// The allocator of a CUDA device (core/cuda_allocator.cpp).
CachingAllocator& cuda_allocator(int index);

}  // namespace ht
