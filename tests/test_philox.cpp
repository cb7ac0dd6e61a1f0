// Philox4x32-10 against published known answers and an independent implementation; the distributions built on it.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "core/context.h"
#include "core/error.h"
#include "core/parallel.h"
#include "core/tensor.h"

using namespace ht;

namespace {
// The generator of the paper written another way: high and low halves of the products from 16-bit parts, the round keys
// from the round's number.
uint32_t high_half(uint32_t a, uint32_t b) {
  const uint32_t al = a & 0xffff, ah = a >> 16, bl = b & 0xffff, bh = b >> 16;
  const uint32_t low = al * bl, m1 = ah * bl + (low >> 16), m2 = al * bh + (m1 & 0xffff);
  return ah * bh + (m1 >> 16) + (m2 >> 16);
}

Philox4 independent(Philox4 x, uint32_t key0, uint32_t key1) {
  for (uint32_t round = 0; round < 10; ++round) {
    const uint32_t k0 = key0 + round * 2654435769u, k1 = key1 + round * 3144134277u;  // golden ratio, sqrt(3) - 1
    const uint32_t a = x[0], b = x[2];
    x = {high_half(b, 3449720151u) ^ x[1] ^ k0, b * 3449720151u, high_half(a, 3528531795u) ^ x[3] ^ k1,
         a * 3528531795u};
  }
  return x;
}

constexpr uint32_t kOnes = 0xffffffffu;

struct Moments {
  double mean = 0, var = 0, skew = 0, kurtosis = 0;
};
Moments moments(const std::vector<double>& v) {
  Moments m;
  const double n = static_cast<double>(v.size());
  for (double x : v) m.mean += x / n;
  for (double x : v) {
    const double d = x - m.mean;
    m.var += d * d / n, m.skew += d * d * d / n, m.kurtosis += d * d * d * d / n;
  }
  m.skew /= std::pow(m.var, 1.5), m.kurtosis /= m.var * m.var;
  return m;
}
}  // namespace

TEST_CASE("philox: known answers of Random123 (kat_vectors, philox4x32 10)") {
  CHECK(philox4x32({0, 0, 0, 0}, 0, 0) == Philox4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({kOnes, kOnes, kOnes, kOnes}, kOnes, kOnes) ==
        Philox4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0) ==
        Philox4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  static_assert(philox4x32({0, 0, 0, 0}, 0, 0)[0] == 0x6627e8d5);  // usable at compile time
}

TEST_CASE("philox: an independent implementation agrees, and streams address it as documented") {
  Philox4 c = {1, 2, 3, 4};
  int wrong = 0;
  for (uint32_t i = 0; i < 2000; ++i) {
    const Philox4 next = philox4x32(c, i * 77777u, c[1] ^ i);
    wrong += next != independent(c, i * 77777u, c[1] ^ i);
    c = next;
  }
  CHECK(wrong == 0);
  const PhiloxStream s{0x123456789abcdef0ull, 0xfedcba9876543210ull};
  const uint64_t i = 0x300000007ull;
  CHECK(s.block(i) == independent({7, 3, 0x76543210, 0xfedcba98}, 0x9abcdef0, 0x12345678));
  for (uint64_t k = 0; k < 4; ++k) CHECK(s.bits(4 * i + k) == s.block(i)[k]);
}

TEST_CASE("philox: uniform numbers") {
  CHECK(to_uniform(0) == 0);
  CHECK(to_uniform(kOnes) == 1 - 0x1p-24f);
  const PhiloxStream s{42, 7};
  const uint64_t n = 1 << 20;
  std::vector<double> v(n);
  std::vector<int> bins(256);
  double lagged = 0;
  for (uint64_t i = 0; i < n; ++i) {
    v[i] = s.uniform(i);
    ++bins[static_cast<size_t>(v[i] * 256)];
    if (i) lagged += (v[i] - 0.5) * (v[i - 1] - 0.5) / static_cast<double>(n);
  }
  const Moments m = moments(v);
  CHECK(*std::min_element(v.begin(), v.end()) >= 0);
  CHECK(*std::max_element(v.begin(), v.end()) < 1);
  CHECK(std::abs(m.mean - 0.5) < 4 * 0.2887 / 1024);  // 4 standard errors
  CHECK(std::abs(m.var - 1.0 / 12) < 4 * 0.0745 / 1024);
  CHECK(std::abs(m.kurtosis - 1.8) < 0.01);
  CHECK(std::abs(lagged) < 4.0 / 12 / 1024);
  double chi2 = 0;
  for (int b : bins) chi2 += (b - 4096.0) * (b - 4096.0) / 4096;
  CHECK(chi2 > 255 - 4 * 22.6);  // mean 255, standard deviation sqrt(2 * 255)
  CHECK(chi2 < 255 + 4 * 22.6);
}

TEST_CASE("philox: a uniform tensor holds the numbers of its stream, in every dtype and by any thread") {
  const PhiloxStream s{42, 9};
  constexpr int64_t kCount = 70'001;  // parts of it begin inside a block of four
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::u8}) {
    const Tensor exact = Tensor::empty({kCount}, DType::f64), t = Tensor::uniform({kCount}, s, -1, 200, dtype);
    for (int64_t i = 0; i < kCount; ++i) exact.data<double>()[i] = -1 + 201.0 * s.uniform(static_cast<uint64_t>(i));
    CHECK_MESSAGE(t.to_vector() == exact.to(dtype).to_vector(), name_of(dtype));
  }
}

TEST_CASE("philox: normal numbers") {
  const PhiloxStream s{42, 8};
  const uint64_t n = 1 << 19;
  std::vector<double> v(n);
  for (uint64_t i = 0; i < n; ++i) v[i] = s.normal(i);
  const Moments m = moments(v);
  const double se = 1 / std::sqrt(static_cast<double>(n));
  CHECK(std::abs(m.mean) < 4 * se);
  CHECK(std::abs(m.var - 1) < 4 * std::sqrt(2) * se);
  CHECK(std::abs(m.skew) < 4 * std::sqrt(6) * se);
  CHECK(std::abs(m.kurtosis - 3) < 4 * std::sqrt(24) * se);
  double pairs = 0;  // the two numbers of one Box-Muller pair
  for (uint64_t i = 0; i < n; i += 2) pairs += v[i] * v[i + 1] / static_cast<double>(n / 2);
  CHECK(std::abs(pairs) < 4 * std::sqrt(2) * se);
  // Kolmogorov-Smirnov against the normal distribution: 1.95 / sqrt(n) is passed once in 1,000.
  std::sort(v.begin(), v.end());
  double distance = 0;
  for (size_t i = 0; i < v.size(); ++i) {
    const double cdf = 0.5 * std::erfc(-v[i] / std::sqrt(2.0));
    distance = std::max(distance, std::abs(cdf - (static_cast<double>(i) + 0.5) / static_cast<double>(n)));
  }
  CHECK(distance < 1.95 * se);
  CHECK(v.front() < -4.3);
  CHECK(v.back() > 4.3);
  CHECK(std::isfinite(v.front()));
}

TEST_CASE("philox: integers below n") {
  const PhiloxStream s{1, 2};
  int counts[8] = {};
  for (uint64_t i = 0; i < 70'000; ++i) {
    const uint32_t k = s.below(i, 7);
    ++counts[std::min(k, 7u)];
  }
  CHECK(counts[7] == 0);
  for (int k = 0; k < 7; ++k) CHECK(std::abs(counts[k] - 10'000) < 4 * 93);  // sqrt(70000 * 1/7 * 6/7) = 92.6
  CHECK(s.below(3, 1) == 0);
}

TEST_CASE("philox: seeds and streams differ from each other") {
  for (const PhiloxStream other : {PhiloxStream{43, 7}, PhiloxStream{42, 8}, PhiloxStream{42 + (1ull << 32), 7},
                                   PhiloxStream{42, 7 + (1ull << 32)}}) {
    const PhiloxStream s{42, 7};
    int equal = 0;
    for (uint64_t i = 0; i < 1000; ++i) equal += s.bits(i) == other.bits(i);
    CHECK(equal == 0);
  }
}

TEST_CASE("generator: one stream a draw, and it resumes") {
  Generator g;
  g.manual_seed(9);
  const PhiloxStream first = g.next(), second = g.next();
  CHECK(first.seed == 9);
  CHECK(first.stream != second.stream);
  const uint64_t at = g.position();
  const PhiloxStream third = g.next();
  g.set_position(at);
  CHECK(g.next().stream == third.stream);
  g.manual_seed(9);
  CHECK(g.next().stream == first.stream);

  manual_seed(5);
  Generator& mine = Context::of(Device::cpu()).generator();
  CHECK(mine.seed() == 5);
  CHECK(mine.position() == 0);
  std::thread([] {
    manual_seed(6);
    CHECK(Context::of(Device::cpu()).generator().seed() == 6);
  }).join();
  CHECK(mine.seed() == 5);  // a thread has its own
}

TEST_CASE("random tensors: a pure function of the stream, whatever the thread count and type") {
  const int before = num_threads();
  for (const bool normal : {true, false}) {
    const auto make = [&](DType t) {
      return normal ? Tensor::normal({301, 101}, {3, 1}, 2, 0.5, t) : Tensor::uniform({301, 101}, {3, 1}, -2, 5, t);
    };
    set_num_threads(1);
    const std::vector<double> one = make(DType::f64).to_vector();
    set_num_threads(6);
    CHECK(make(DType::f64).to_vector() == one);
    CHECK(make(DType::f32).to_vector() == make(DType::f64).to(DType::f32).to_vector());
    CHECK(one[1234] ==
          (normal ? 2 + 0.5 * PhiloxStream{3, 1}.normal(1234) : -2 + 7.0 * PhiloxStream{3, 1}.uniform(1234)));
  }
  set_num_threads(before);
}
