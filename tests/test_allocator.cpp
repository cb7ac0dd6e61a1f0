// The caching allocator's bookkeeping, over a source that the test can watch.
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "core/caching_allocator.h"
#include "core/error.h"
#include "core/philox.h"

using namespace ht;

namespace {
constexpr size_t kMiB = size_t{1} << 20;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kCached = false;  // a sanitizer build gives every block its own allocation
#else
constexpr bool kCached = true;
#endif

class Watched final : public CachingAllocator {
 public:
  explicit Watched(size_t budget = size_t{1} << 40) : CachingAllocator(Device::cpu()), budget_(budget) {}
  ~Watched() override { empty_cache(); }
  std::map<char*, size_t> segments;

 protected:
  void* system_allocate(size_t bytes) override {
    if (bytes > system_available()) return nullptr;
    void* p = nullptr;
    if (posix_memalign(&p, 256, bytes) != 0) return nullptr;
    segments[static_cast<char*>(p)] = bytes;
    return p;
  }
  void system_free(void* ptr, size_t) noexcept override {
    segments.erase(static_cast<char*>(ptr));
    std::free(ptr);
  }
  size_t system_available() const override {
    size_t used = 0;
    for (const auto& [p, bytes] : segments) used += bytes;
    return budget_ - used;
  }

 private:
  size_t budget_;
};
}  // namespace

TEST_CASE("allocator: random traffic never overlaps, leaves its segment, or loses a byte") {
  Watched a;
  const PhiloxStream random{11, 0};
  uint64_t draw = 0;
  struct Live {
    unsigned char* p;
    size_t bytes;
    unsigned char mark;
  };
  std::vector<Live> live;
  std::map<unsigned char*, size_t> ranges;
  for (int i = 0; i < 4000; ++i) {
    if (live.empty() || random.below(draw++, 100) < 55) {
      const uint32_t kind = random.below(draw++, 10);
      const size_t bytes = 1 + random.below(draw++, kind < 7 ? 5000 : kind < 9 ? 700'000 : 3'000'000);
      auto* p = static_cast<unsigned char*>(a.allocate(bytes));
      REQUIRE(reinterpret_cast<uintptr_t>(p) % 256 == 0);
      auto segment = a.segments.upper_bound(reinterpret_cast<char*>(p));
      REQUIRE(segment != a.segments.begin());
      --segment;
      REQUIRE(reinterpret_cast<char*>(p) + bytes <= segment->first + segment->second);
      const auto next = ranges.lower_bound(p);
      REQUIRE((next == ranges.end() || p + bytes <= next->first));
      if (next != ranges.begin()) REQUIRE(std::prev(next)->first + std::prev(next)->second <= p);
      ranges[p] = bytes;
      const auto mark = static_cast<unsigned char>(i);
      p[0] = p[bytes - 1] = mark;
      live.push_back({p, bytes, mark});
    } else {
      const size_t k = random.below(draw++, static_cast<uint32_t>(live.size()));
      REQUIRE(live[k].p[0] == live[k].mark);
      REQUIRE(live[k].p[live[k].bytes - 1] == live[k].mark);
      ranges.erase(live[k].p);
      a.deallocate(live[k].p);
      live[k] = live.back();
      live.pop_back();
    }
    size_t asked = 0, reserved = 0;
    for (const auto& [p, bytes] : ranges) asked += bytes;
    for (const auto& [p, bytes] : a.segments) reserved += bytes;
    REQUIRE(a.stats().allocated >= asked);
    REQUIRE(a.stats().peak >= a.stats().allocated);
    if (kCached) REQUIRE(a.stats().reserved == reserved);
  }
  for (const Live& l : live) a.deallocate(l.p);
  CHECK(a.stats().allocated == 0);
  a.empty_cache();
  CHECK(a.stats().reserved == 0);
  CHECK(a.segments.empty());
  a.reset_peak();
  CHECK(a.stats().peak == 0);
}

TEST_CASE("allocator: a repeated iteration asks the system for nothing") {
  if (!kCached) return;
  Watched a;
  size_t segments = 0;
  for (int step = 0; step < 5; ++step) {
    std::vector<void*> held;
    for (const size_t bytes : {100, 5'000'000, 300, 1'500'000, 700'000, 2'097'152, 64})
      held.push_back(a.allocate(bytes));
    for (void* p : held) a.deallocate(p);
    if (step == 0) segments = a.segments.size();
    CHECK(a.segments.size() == segments);
  }
  CHECK(a.allocate(0) == nullptr);
  a.deallocate(nullptr);
}

TEST_CASE("allocator: a tensor that fills its segment to a few bytes does not share them") {
  Watched a;
  auto* big = static_cast<char*>(a.allocate(2 * kMiB - 100));
  auto* small = static_cast<char*>(a.allocate(64));
  std::memset(big, 1, 2 * kMiB - 100);
  std::memset(small, 2, 64);
  CHECK(big[2 * kMiB - 101] == 1);
  CHECK(a.segments.size() == 2);
  a.deallocate(big);
  a.deallocate(small);
}

TEST_CASE("allocator: under a limit or a full system it gives its cache back, then says what is held") {
  if (!kCached) return;
  Watched a(8 * kMiB);
  void* p = a.allocate(4 * kMiB);
  void* q = a.allocate(2 * kMiB);
  a.deallocate(p);
  p = a.allocate(6 * kMiB);  // fits only when the cached 4 MiB go back first
  CHECK(a.stats().reserved == 8 * kMiB);
  std::string text;
  try {
    a.allocate(1000);
  } catch (const Error& e) {
    text = e.what();
  }
  CHECK(text.find("allocator: out of memory on cpu: asked for 0.000953674 MiB; allocated 8 MiB, cached 0 MiB, free 0 "
                  "MiB; use a smaller batch or model") == 0);
  a.deallocate(p);
  a.set_limit(4 * kMiB);
  CHECK_THROWS_AS(a.allocate(3 * kMiB), Error);
  CHECK(a.stats().reserved == 2 * kMiB);
  p = a.allocate(2 * kMiB);
  a.set_limit(0);
  a.deallocate(p);
  a.deallocate(q);
  CHECK(a.stats().allocated == 0);
}
