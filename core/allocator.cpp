#include "core/allocator.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "core/build.h"
#include "core/caching_allocator.h"
#include "core/error.h"

namespace ht {

namespace {
constexpr size_t kAlign = 256;
constexpr size_t kSegment = size_t{2} << 20;
constexpr size_t kSmall = size_t{1} << 20;  // smaller requests share 2 MiB segments

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

double mib(size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

std::atomic<int> poison_depth{0};

// Under AddressSanitizer every block is its own allocation, so that overruns and use after free are seen.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kCache = false;
#else
constexpr bool kCache = true;
#endif

class CpuAllocator final : public CachingAllocator {
 public:
  CpuAllocator() : CachingAllocator(Device::cpu()) {}

 protected:
  void* system_allocate(size_t bytes) override {
    void* p = nullptr;
    if (posix_memalign(&p, kCache ? kSegment : kAlign, bytes) != 0) return nullptr;
    if (kCache) madvise(p, bytes, MADV_HUGEPAGE);  // a hint: refusing it costs speed only
    return p;
  }
  void system_free(void* ptr, size_t) noexcept override { std::free(ptr); }
  size_t system_available() const override {
    return static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  }
};

CachingAllocator& allocator_of(Device device) {
  if constexpr (kCudaBuild) {
    if (device.is_cuda()) return cuda_allocator(device.index);
  }
  check(!device.is_cuda(), "allocator: ", device, " needs a CUDA build; configure with -DHALFTONE_CUDA=ON");
  static CpuAllocator& cpu = *new CpuAllocator;  // never destroyed: static tensors may outlive any order
  return cpu;
}
}  // namespace

void* CachingAllocator::allocate(size_t bytes) {
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  check(bytes < (size_t{1} << 62), "allocator: out of memory on ", device_, ": asked for ", bytes, " bytes");
  const size_t size = round_up(bytes, kAlign);
  const int pool = current_pool();
  Block* block = take_free(size, pool);
  if (!block) block = grow(size, bytes, pool);
  if (block->ticket) wait_for(block->ticket);
  block->ticket = 0;
  split(block, size);
  block->free = false;
  live_[block->ptr] = block;
  stats_.allocated += block->size;
  stats_.peak = std::max(stats_.peak, stats_.allocated);
  return block->ptr;
}

void CachingAllocator::deallocate(void* ptr) noexcept {
  if (!ptr) return;
  const std::lock_guard lock(mutex_);
  const auto it = live_.find(ptr);
  if (it == live_.end()) return;
  Block* block = it->second;
  live_.erase(it);
  stats_.allocated -= block->size;
  block->free = true;
  FreeBlocks& free = free_[block->pool];
  if (block->next && block->next->free) {
    free.erase(block->next);
    absorb_next(block);
  }
  if (block->prev && block->prev->free) {
    block = block->prev;
    free.erase(block);
    absorb_next(block);
  }
  free.insert(block);
  if (!kCache && !device_.is_cuda()) release_free_segments();
}

// The smallest block that fits and need not be waited for; else the smallest that fits.
CachingAllocator::Block* CachingAllocator::take_free(size_t size, int pool) {
  Block key{nullptr, size, true, pool};
  FreeBlocks& free = free_[pool];
  const auto first = free.lower_bound(&key);
  auto it = std::find_if(first, free.end(), [&](const Block* b) { return is_done(b->ticket); });
  if (it == free.end()) it = first;
  if (it == free.end()) return nullptr;
  Block* block = *it;
  // A small tensor must not pin a large segment that a large tensor will soon need again.
  if (size < kSmall && block->size > kSegment && !block->prev && !block->next) return nullptr;
  free.erase(it);
  return block;
}

CachingAllocator::Block* CachingAllocator::grow(size_t size, size_t asked, int pool) {
  const bool cached = kCache || device_.is_cuda();
  const size_t segment = cached ? round_up(std::max(size, kSegment), kSegment) : size;
  const size_t bytes = cached ? segment : asked;  // exact without a cache, so that an overrun by one byte shows
  const auto within_limit = [&] { return !limit_ || stats_.reserved + segment <= limit_; };
  void* p = within_limit() ? system_allocate(bytes) : nullptr;
  if (!p) {  // give cached segments back, then try once more
    release_free_segments();
    if (within_limit()) p = system_allocate(bytes);
  }
  if (!p) {
    const size_t available = system_available();
    fail("allocator: out of memory on ", device_, ": asked for ", mib(asked), " MiB; allocated ", mib(stats_.allocated),
         " MiB, cached ", mib(stats_.cached()), " MiB, free ",
         mib(limit_ ? std::min(available, limit_ - std::min(limit_, stats_.reserved)) : available), " MiB",
         limit_ ? str(" (limit ", mib(limit_), " MiB)") : "", "; use a smaller batch or model");
  }
  stats_.reserved += segment;
  auto block = std::make_unique<Block>(Block{static_cast<char*>(p), segment, true, pool});
  Block* raw = block.get();
  blocks_[raw] = std::move(block);
  return raw;
}

void CachingAllocator::split(Block* block, size_t size) {
  if (block->size - size < (size < kSmall ? kAlign : kSmall)) return;
  auto rest = std::make_unique<Block>(
      Block{block->ptr + size, block->size - size, true, block->pool, block->ticket, block, block->next});
  if (block->next) block->next->prev = rest.get();
  block->next = rest.get();
  block->size = size;
  free_[block->pool].insert(rest.get());
  Block* raw = rest.get();
  blocks_[raw] = std::move(rest);
}

void CachingAllocator::absorb_next(Block* block) {
  Block* gone = block->next;
  block->size += gone->size;
  block->ticket = std::max(block->ticket, gone->ticket);
  block->next = gone->next;
  if (gone->next) gone->next->prev = block;
  blocks_.erase(gone);
}

// A pool's own segments stay: a graph may use them at any time.
void CachingAllocator::release_free_segments() {
  FreeBlocks& free = free_[0];
  for (auto it = free.begin(); it != free.end();) {
    Block* block = *it;
    if (block->prev || block->next) {
      ++it;
      continue;
    }
    it = free.erase(it);
    stats_.reserved -= block->size;
    system_free(block->ptr, block->size);
    blocks_.erase(block);
  }
}

MemoryStats CachingAllocator::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void CachingAllocator::reset_peak() {
  const std::lock_guard lock(mutex_);
  stats_.peak = stats_.allocated;
}

void CachingAllocator::empty_cache() {
  const std::lock_guard lock(mutex_);
  release_free_segments();
}

void CachingAllocator::set_limit(size_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
  if (limit_ && stats_.reserved > limit_) release_free_segments();
}

void CachingAllocator::keep_until(void* ptr, uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  const auto it = live_.find(ptr);
  if (it != live_.end()) it->second->ticket = std::max(it->second->ticket, ticket);
}

namespace {
thread_local const CachingAllocator* entered = nullptr;
thread_local int entered_pool = 0;
}  // namespace

int CachingAllocator::current_pool() const { return entered == this ? entered_pool : 0; }

int CachingAllocator::new_pool() {
  const std::lock_guard lock(mutex_);
  return ++last_pool_;
}

void CachingAllocator::enter_pool(int pool) {
  check(entered == nullptr, "allocator: this thread is in a pool already; leave it first");
  entered = this, entered_pool = pool;
}

void CachingAllocator::leave_pool() { entered = nullptr, entered_pool = 0; }

void CachingAllocator::retire_pool(int pool) {
  const std::lock_guard lock(mutex_);
  for (const auto& [raw, block] : blocks_)
    if (block->pool == pool) block->pool = 0;
  free_[0].merge(free_[pool]);
  free_.erase(pool);
}

MemoryStats memory_stats(Device device) { return allocator_of(device).stats(); }
void reset_peak_memory(Device device) { allocator_of(device).reset_peak(); }
void empty_cache(Device device) { allocator_of(device).empty_cache(); }
void set_memory_limit(size_t bytes, Device device) { allocator_of(device).set_limit(bytes); }

void* allocate(size_t bytes, Device device) {
  void* p = allocator_of(device).allocate(bytes);
  if (p && !device.is_cuda() && poison_depth.load(std::memory_order_relaxed) > 0) std::memset(p, 0xff, bytes);
  return p;
}

void deallocate(void* ptr, Device device) noexcept {
  if (ptr) allocator_of(device).deallocate(ptr);
}

PoisonGuard::PoisonGuard() { ++poison_depth; }
PoisonGuard::~PoisonGuard() { --poison_depth; }

}  // namespace ht
