// Shapes, tensors, devices and threads.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "core/allocator.h"
#include "core/arithmetic.h"
#include "core/context.h"
#include "core/parallel.h"
#include "core/tensor.h"
#include "tests/error_of.h"

using namespace ht;

namespace {
using Values = std::vector<double>;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr DType kAll[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::u8, DType::i32, DType::i64};

}  // namespace

TEST_CASE("shape: rank 0 to 8, zero sizes, printing") {
  CHECK(Shape{}.rank() == 0);
  CHECK(Shape{}.numel() == 1);
  CHECK(str(Shape{}) == "[]");
  const Shape s{1, 2, 3, 4, 5, 6, 7, 8};
  CHECK(s.rank() == 8);
  CHECK(s.numel() == 40320);
  CHECK(str(s) == "[1,2,3,4,5,6,7,8]");
  CHECK(s[0] == 1);
  CHECK(s[-1] == 8);
  CHECK(s.back() == 8);
  CHECK(s.product(1, 4) == 24);
  CHECK(s.product(3, 3) == 1);
  CHECK(s.with(-2, 0).numel() == 0);
  CHECK(Shape{3, 0, 5}.numel() == 0);
  CHECK(Shape{2, 3} != Shape{2, 3, 1});
  CHECK(Shape{2, 3} != Shape{3, 2});
  CHECK(Shape{2} != Shape{});
  CHECK(Shape{0} != Shape{});
}

TEST_CASE("shape: errors") {
  CHECK(error_of([] { Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}; }) == "shape: rank 9 is above the limit of 8");
  CHECK(error_of([] { Shape{2, -1}; }) == "shape: negative size -1 in [2,-1]");
  CHECK(error_of([] {
          Shape{int64_t{1} << 40, int64_t{1} << 40};
        }) == "shape: the element count of [1099511627776,1099511627776] does not fit 63 bits");
  CHECK(error_of([] {
          Shape{0, int64_t{1} << 40, int64_t{1} << 40};
        }).find("does not fit 63 bits") != std::string::npos);
  CHECK(error_of([] { Shape({2, 3})[2]; }) == "shape: axis 2 is out of range for rank 2 ([2,3])");
  CHECK(error_of([] { Shape({2, 3})[-3]; }).find("axis -3") != std::string::npos);
  CHECK(error_of([] { Shape{}.back(); }).find("rank 0") != std::string::npos);
  CHECK(error_of([] { Shape({2, 3}).with(5, 1); }).find("axis 5") != std::string::npos);
}

TEST_CASE("shape: broadcasting") {
  CHECK(broadcast({2, 1, 4}, {3, 1}, "op") == Shape{2, 3, 4});
  CHECK(broadcast({}, {3, 2}, "op") == Shape{3, 2});
  CHECK(broadcast({0, 1}, {1, 5}, "op") == Shape{0, 5});
  CHECK(broadcast({1}, {0}, "op") == Shape{0});
  CHECK(error_of([] {
          broadcast({2, 3}, {4}, "op");
        }) == "op: shapes [2,3] and [4] do not broadcast: axis -1 is 3 against 4");
  CHECK_THROWS_AS(broadcast({0}, {2}, "op"), Error);
}

TEST_CASE("tensor: making, reading, printing") {
  const Tensor t = Tensor::from({1, 2, 3, 4, 5, 6}, {2, 3});
  CHECK(str(t) == "[2,3] f32 cpu");
  CHECK(str(Named{"x", t}) == "x [2,3] f32 cpu");
  CHECK(str(Tensor()) == "undefined");
  CHECK(t.at(4) == 5);
  CHECK(t.bytes() == 24);
  CHECK(reinterpret_cast<uintptr_t>(t.data()) % 16 == 0);
  CHECK(Tensor::full({}, 2.5).item() == 2.5);
  CHECK(Tensor::zeros({3}, DType::i64).to_vector() == Values{0, 0, 0});
  const int32_t labels[] = {3, 1, 2};
  CHECK(Tensor::of<int32_t>(labels, {3}).dtype() == DType::i32);
  CHECK(Tensor::of<int32_t>(labels, {3}).to_vector() == Values{3, 1, 2});
  for (DType type : kAll) {
    CHECK(Tensor::zeros({0, 3}, type).to_vector().empty());
    CHECK(Tensor::empty({0}, type).clone().numel() == 0);
    CHECK(Tensor::full({2}, 7, type).to_vector() == Values{7, 7});
  }
  CHECK(error_of([&] { Tensor::from({1, 2}, {3}); }) == "tensor: 2 values for shape [3]");
  CHECK(error_of([&] { t.at(6); }) == "tensor: index 6 is out of range ([2,3] f32 cpu)");
  CHECK(error_of([&] { t.at(-1); }).find("index -1") != std::string::npos);
  CHECK(error_of([&] { t.item(); }) == "tensor: item() needs exactly one element ([2,3] f32 cpu)");
  CHECK(error_of([&] { Tensor::zeros({0}).item(); }).find("exactly one") != std::string::npos);
  CHECK(error_of([&] { t.data<double>(); }) == "tensor: data<f64>() on [2,3] f32 cpu");
  for (auto f : {+[] { Tensor().item(); }, +[] { Tensor().at(0); }, +[] { Tensor().to_vector(); },
                 +[] { Tensor().clone(); }, +[] { Tensor().fill_(1); }, +[] { Tensor().view({}); }})
    CHECK_THROWS_AS(f(), Error);
}

TEST_CASE("tensor: views share storage and version") {
  const Tensor t = Tensor::from({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, {3, 4});
  const Tensor v = t.reshape({2, -1}), r = t.rows(1, 3), flat = t.view({12});
  CHECK(v.shape() == Shape{2, 6});
  CHECK(r.shape() == Shape{2, 4});
  CHECK(r.to_vector() == Values{4, 5, 6, 7, 8, 9, 10, 11});
  CHECK(r.at(0) == 4);
  CHECK(v.same_storage(t));
  CHECK(r.same_storage(flat));
  CHECK_FALSE(t.clone().same_storage(t));
  CHECK_FALSE(t.unique());
  const uint64_t version = t.version();
  r.fill_(-1);
  CHECK(t.to_vector() == Values{0, 1, 2, 3, -1, -1, -1, -1, -1, -1, -1, -1});
  CHECK(v.version() == version + 1);
  CHECK(t.version() == version + 1);
  flat.bump_version();
  CHECK(r.version() == version + 2);
  CHECK(t.clone().version() <= 1);
  CHECK(r.rows(1, 2).rows(0, 1).to_vector() == Values{-1, -1, -1, -1});
  CHECK(t.rows(3, 3).shape() == Shape{0, 4});
  CHECK(t.rows(2, 2).to_vector().empty());
  // A view keeps the storage alive.
  Tensor last;
  {
    const Tensor own = Tensor::full({4, 2}, 3);
    last = own.rows(3, 4);
  }
  CHECK(last.unique());
  CHECK(last.to_vector() == Values{3, 3});
}

TEST_CASE("tensor: reshape and rows errors") {
  const Tensor t = Tensor::zeros({3, 4});
  CHECK(t.reshape({-1}).shape() == Shape{12});
  CHECK(t.reshape({2, 3, 2}).shape() == Shape{2, 3, 2});
  CHECK(Tensor::zeros({}).reshape({1, 1}).shape() == Shape{1, 1});
  CHECK(Tensor::zeros({1}).reshape({}).shape() == Shape{});
  CHECK(Tensor::zeros({0, 4}).reshape({-1, 2}).shape() == Shape{0, 2});
  CHECK(error_of([&] { t.reshape({5, -1}); }) == "reshape: 12 elements cannot be split by 5 ([3,4] f32 cpu)");
  CHECK(error_of([&] { t.reshape({-1, -1}); }) == "reshape: more than one size is -1 ([3,4] f32 cpu)");
  CHECK(error_of([&] { t.reshape({5}); }) == "view: shape [5] has 5 elements, the tensor has 12 (" + str(t) + ")");
  const int64_t big = int64_t{1} << 40;
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
           {0, -1}, {-2, -6}, {-2, -1}, {-2, -3, -1}, {big, big}, {big, big, -1}, {big, big, -12, -1}})
    CHECK_THROWS_AS(t.reshape(sizes), Error);
  CHECK(error_of([&] { t.rows(1, 4); }) == "rows: [1, 4) is out of range ([3,4] f32 cpu)");
  CHECK_THROWS_AS(t.rows(-1, 2), Error);
  CHECK_THROWS_AS(t.rows(2, 1), Error);
  CHECK_THROWS_AS(Tensor::zeros({}).rows(0, 1), Error);
}

TEST_CASE("tensor: conversions among all dtypes") {
  const Values exact = {0, 1, 2, 100, 255};  // held by every type (bfloat16 has 8 bits)
  for (DType a : kAll)
    for (DType b : kAll) {
      const Tensor t = Tensor::from(exact, {5}, a).to(b);
      CHECK(t.dtype() == b);
      CHECK(t.to_vector() == exact);
    }
  const Values mixed = {-1.75, 2.5, 300.7, -3e9, 3e9, 1e30, -1e30, kNan, kInf, -kInf};
  const double i32_max = 2147483647, i32_min = -2147483648.0, i64_max = 0x1p63, i64_min = -0x1p63;
  for (DType from : {DType::f64, DType::f32}) {
    const Tensor t = Tensor::from(mixed, {10}, from);
    CHECK(t.to(DType::i32).to_vector() == Values{-1, 2, 300, i32_min, i32_max, i32_max, i32_min, 0, i32_max, i32_min});
    CHECK(t.to(DType::u8).to_vector() == Values{0, 2, 255, 0, 255, 255, 0, 0, 255, 0});
    CHECK(t.to(DType::i64).to_vector() == Values{-1, 2, 300, -3e9, 3e9, i64_max, i64_min, 0, i64_max, i64_min});
  }
  CHECK(Tensor::full({1}, kInf, DType::f16).to(DType::u8).item() == 255);
  CHECK(std::isnan(Tensor::full({1}, kNan, DType::f16).to(DType::bf16).item()));
  CHECK(Tensor::from({70000, 1e-8, -70000}, {3}).to(DType::f16).to_vector() == Values{kInf, 0, -kInf});
  CHECK(Tensor::from({70000}, {1}).to(DType::bf16).item() == 70144);
  const Tensor t = Tensor::zeros({2});
  CHECK(t.to(DType::f32).same_storage(t));
  CHECK(t.to(Device::cpu()).same_storage(t));
}

TEST_CASE("tensor: copy_ converts, keeps values through odd sizes and threads") {
  const int before = num_threads();
  for (const int threads : {1, 5}) {
    set_num_threads(threads);
    for (const int64_t n : {1, 7, 8, 9, 65'537, 200'001}) {
      const Tensor x = Tensor::uniform({n}, {4, 0}, -3, 3);
      for (DType t : {DType::f16, DType::bf16, DType::f64}) {
        const Tensor y = x.to(t), back = y.to(DType::f32);
        const double bound = t == DType::f64 ? 0 : t == DType::f16 ? 0x1p-10 : 0x1p-7;
        double worst = 0;
        for (int64_t i = 0; i < n; ++i)
          worst = std::max(worst, std::abs(static_cast<double>(back.data<float>()[i]) - x.data<float>()[i]));
        CHECK(worst <= bound);
      }
    }
  }
  set_num_threads(before);
  const Tensor to = Tensor::zeros({2}, DType::i32);
  to.copy_(Tensor::from({5.9, -7.9}, {2}, DType::f16));
  CHECK(to.to_vector() == Values{5, -7});
  CHECK(error_of([&] { to.copy_(Tensor::zeros({3})); }) == "copy_: shapes differ (to [2] i32 cpu, from [3] f32 cpu)");
  CHECK_THROWS_AS(to.copy_(Tensor()), Error);
  const Tensor self = Tensor::from({1, 2, 3}, {3});
  self.copy_(self);
  self.rows(0, 2).copy_(self.rows(1, 3));  // overlapping
  CHECK(self.to_vector() == Values{2, 3, 3});
}

TEST_CASE("add_into: mixed types, counters, errors") {
  const Tensor f = Tensor::from({1, 2}, {2}), h = Tensor::from({0.5, 0.25}, {2}, DType::f16);
  const uint64_t version = f.version();
  add_into(f, h);
  CHECK(f.to_vector() == Values{1.5, 2.25});
  CHECK(f.version() == version + 1);
  add_into(h, f);
  CHECK(h.to_vector() == Values{2, 2.5});
  add_into(f, f);
  CHECK(f.to_vector() == Values{3, 4.5});
  const Tensor big = Tensor::full({1}, 40000, DType::f16), wide = Tensor::zeros({1});
  add_into(wide, big), add_into(wide, big);
  CHECK(wide.item() == 80000);
  CHECK(error_of([&] { add_into(f, Tensor::zeros({3})); }) ==
        "add_into: tensors do not fit (to [2] f32 cpu, from [3] f32 cpu)");
  CHECK_THROWS_AS(add_into(f, Tensor::zeros({2}, DType::i32)), Error);
}

TEST_CASE("device: parsing, printing, absence") {
  CHECK(Device::parse("cpu") == Device::cpu());
  CHECK(Device::parse("cuda") == Device::cuda(0));
  CHECK(str(Device::parse("cuda:3")) == "cuda:3");
  CHECK(str(Device::cpu()) == "cpu");
  for (const char* bad : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cpu:0", "cuda:99999999999"})
    CHECK(error_of([&] { Device::parse(bad); }) == str("device: '", bad, "' is unknown; use cpu, cuda or cuda:N"));
  const int beyond = cuda_device_count();
  CHECK_THROWS_AS(Context::of(Device::cuda(beyond)), Error);
  CHECK_THROWS_AS(Tensor::zeros({2}, DType::f32, Device::cuda(beyond)), Error);
  CHECK_THROWS_AS(Tensor::zeros({2}).to(Device::cuda(beyond)), Error);
  if (!cuda_is_built())
    CHECK(error_of([] { Tensor::zeros({2}, DType::f32, Device::cuda()); }).find("needs a CUDA build") !=
          std::string::npos);
  CHECK_THROWS_AS(Context::of(Device::cpu()).cuda(), Error);
}

TEST_CASE("error: the parts join and cost nothing unless they are needed") {
  CHECK(error_of([] { check(false, "op: ", 3, " is not ", 4.5); }) == "op: 3 is not 4.5");
  CHECK(error_of([] { check(true, "never"); }) == "no error");
}

TEST_CASE("parallel_for: every item once, parts in order, nested calls run inside") {
  const int before = num_threads();
  for (const int threads : {1, 2, 3, 8}) {
    set_num_threads(threads);
    for (const int64_t n : {0, 1, 2, 7, 1000}) {
      for (const int64_t grain : {0, 1, 3, 2000}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
        std::atomic<int> parts{0};
        parallel_for(n, grain, [&](int64_t begin, int64_t end) {
          ++parts;
          for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
        });
        int wrong = 0;
        for (const auto& s : seen) wrong += s != 1;
        CHECK(wrong == 0);
        CHECK(parts <= threads);
        if (n == 0) CHECK(parts == 0);
        if (grain == 2000) CHECK(parts <= 1);
      }
    }
    std::atomic<int> inner{0};
    parallel_for(4, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        parallel_for(10, 1, [&](int64_t b, int64_t e) { inner += static_cast<int>(e - b); });
    });
    CHECK(inner == 40);
  }
  CHECK(error_of([] { set_num_threads(0); }) == "set_num_threads: 0 threads; use 1 or more");
  set_num_threads(before);
}

TEST_CASE("memory: statistics follow the tensors; a tensor too large is an error that loses nothing") {
  empty_cache();
  const MemoryStats start = memory_stats();
  reset_peak_memory();
  {
    const Tensor a = Tensor::empty({1 << 20}), view = a.view({1024, 1024}), copy = a;
    CHECK(memory_stats().allocated >= start.allocated + (4 << 20));
    CHECK(memory_stats().allocated < start.allocated + (5 << 20));  // views and handles cost nothing
    CHECK(memory_stats().peak == memory_stats().allocated);
    CHECK(memory_stats().reserved >= memory_stats().allocated);
    CHECK(Tensor::empty({0, 5}).data() == nullptr);
  }
  CHECK(memory_stats().allocated == start.allocated);
  CHECK(memory_stats().peak >= start.allocated + (4 << 20));
  reset_peak_memory();
  CHECK(memory_stats().peak == start.allocated);

  const Tensor kept = Tensor::full({1000}, 7);
  const MemoryStats held = memory_stats();
  set_memory_limit(held.reserved + (8 << 20));
  const std::string text = error_of([] { Tensor::empty({64 << 20}); });
  CHECK(text.find("allocator: out of memory on cpu: asked for 256 MiB; allocated ") == 0);
  CHECK(text.find("cached ") != std::string::npos);
  CHECK(text.find("(limit ") != std::string::npos);
  CHECK(memory_stats().allocated == held.allocated);
  CHECK(Tensor::full({1 << 20}, 1).at(5) == 1);  // what fits still works
  set_memory_limit(0);
  CHECK(Tensor::empty({64 << 20}).numel() == 64 << 20);
  CHECK(kept.at(999) == 7);
  CHECK(error_of([] { Tensor::empty({int64_t{1} << 60}); }).find("out of memory") != std::string::npos);
  empty_cache();
  CHECK(memory_stats().reserved <= held.reserved);
}

TEST_CASE("memory: many threads allocate, write, hand over and free") {
  const size_t before = memory_stats().allocated;
  std::atomic<int> wrong{0};
  std::vector<Tensor> handed(8);
  const auto work = [&](size_t id) {
    const PhiloxStream random{77, id};
    std::vector<Tensor> mine;
    for (uint64_t i = 0; i < 3000; ++i) {
      const int64_t n = 1 + random.below(2 * i, i % 100 == 0 ? 600'000 : 3000);
      Tensor t = Tensor::empty({n}, DType::i32);
      const auto mark = static_cast<int32_t>(id * 100'000 + i);
      t.data<int32_t>()[0] = mark;
      t.data<int32_t>()[n - 1] = mark;
      mine.push_back(std::move(t));
      if (mine.size() > 20) {
        const size_t k = random.below(2 * i + 1, 20);
        const Tensor& old = mine[k];
        wrong += old.data<int32_t>()[0] != old.data<int32_t>()[old.numel() - 1];
        wrong += old.data<int32_t>()[0] / 100'000 != static_cast<int32_t>(id);
        mine.erase(mine.begin() + static_cast<int64_t>(k));
      }
    }
    handed[id] = mine.front();  // freed by another thread
  };
  std::vector<std::thread> threads;
  for (size_t id = 0; id < handed.size(); ++id) threads.emplace_back(work, id);
  for (std::thread& t : threads) t.join();
  CHECK(wrong == 0);
  handed.clear();
  CHECK(memory_stats().allocated == before);
}

TEST_CASE("memory: poisoned tensors are NaN") {
  {
    const PoisonGuard outer;
    {
      const PoisonGuard inner;
      CHECK(std::isnan(Tensor::empty({3}).at(2)));
    }
    for (DType t : {DType::f64, DType::f32, DType::f16, DType::bf16}) CHECK(std::isnan(Tensor::empty({5}, t).at(4)));
    CHECK(Tensor::zeros({3}).at(2) == 0);
  }
  CHECK(Tensor::zeros({3}).at(2) == 0);
}
