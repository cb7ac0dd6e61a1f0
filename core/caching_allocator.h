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
  // The block at `ptr` is in use until the work that `ticket` stands for is done, even when it is freed before.
  void keep_until(void* ptr, uint64_t ticket);

  // Memory set apart: what this thread allocates between enter and leave comes from segments of that pool, and goes
  // back to it. A pool's segments are kept until `retire` hands them to everyone.
  int new_pool();
  void enter_pool(int pool);
  void leave_pool();
  void retire_pool(int pool);

 protected:
  virtual void* system_allocate(size_t bytes) = 0;  // nullptr when the system has no more
  virtual void system_free(void* ptr, size_t bytes) noexcept = 0;
  virtual size_t system_available() const = 0;                      // bytes, for the out-of-memory text
  virtual bool is_done(uint64_t /*ticket*/) const { return true; }  // for whoever allocates, without waiting
  virtual void wait_for(uint64_t /*ticket*/) {}                     // makes whoever allocates wait

 private:
  struct Block {
    char* ptr;
    size_t size;
    bool free;
    int pool;               // 0: everyone's
    uint64_t ticket = 0;    // in use until this one is done
    Block* prev = nullptr;  // neighbours in the same segment
    Block* next = nullptr;
  };
  struct BySize {
    bool operator()(const Block* a, const Block* b) const {
      return a->size != b->size ? a->size < b->size : a->ptr < b->ptr;
    }
  };

  using FreeBlocks = std::set<Block*, BySize>;

  Block* take_free(size_t size, int pool);
  Block* grow(size_t size, size_t asked, int pool);
  void split(Block* block, size_t size);
  void absorb_next(Block* block);
  void release_free_segments();
  int current_pool() const;

  const Device device_;
  mutable std::mutex mutex_;
  MemoryStats stats_;
  size_t limit_ = 0;
  std::map<int, FreeBlocks> free_;  // of each pool
  int last_pool_ = 0;
  std::unordered_map<void*, Block*> live_;
  std::unordered_map<Block*, std::unique_ptr<Block>> blocks_;
};

// The allocator of a CUDA device (core/cuda_allocator.cpp).
CachingAllocator& cuda_allocator(int index);

}  // namespace ht
