// The 16-bit floats: every bit pattern against Eigen's, ties, and the bulk conversions bit for bit.
#include <doctest/doctest.h>

#include <Eigen/Core>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "core/dtype.h"
#include "core/error.h"

using namespace ht;

namespace {
constexpr float kInf = std::numeric_limits<float>::infinity();

template <class T>
T of_bits(uint32_t bits) {
  T t;
  t.bits = static_cast<uint16_t>(bits);
  return t;
}

uint32_t bits_of(float f) { return std::bit_cast<uint32_t>(f); }

template <class Reference>
float reference_value(uint32_t bits) {
  if constexpr (std::is_same_v<Reference, Eigen::half>) {
    return Eigen::half_impl::half_to_float(Eigen::half_impl::raw_uint16_to_half(static_cast<uint16_t>(bits)));
  } else {
    return Eigen::bfloat16_impl::bfloat16_to_float(
        Eigen::bfloat16_impl::raw_uint16_to_bfloat16(static_cast<uint16_t>(bits)));
  }
}

template <class Reference>
uint16_t reference_bits(float f) {
  if constexpr (std::is_same_v<Reference, Eigen::half>) {
    return Eigen::half(f).x;
  } else {
    return Eigen::bfloat16(f).value;
  }
}

// Floats that decide a rounding: every value of the type, the midpoint to the next one, and their neighbours; besides
// a sweep over all of binary32.
template <class T>
std::vector<float> probes() {
  std::vector<float> out;
  const auto around = [&](float f) { out.insert(out.end(), {f, std::nextafter(f, -kInf), std::nextafter(f, kInf)}); };
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float f = static_cast<float>(of_bits<T>(h)), next = static_cast<float>(of_bits<T>((h + 1) & 0xffff));
    around(f);
    if (std::isfinite(f) && std::isfinite(next)) around(static_cast<float>((static_cast<double>(f) + next) / 2));
  }
  around(65520.0f), around(-65520.0f);
  for (uint64_t b = 0; b < 0x100000000ull; b += 1009) out.push_back(std::bit_cast<float>(static_cast<uint32_t>(b)));
  return out;
}

template <class T, class Reference>
void check_against() {
  int wrong_values = 0, wrong_trips = 0, wrong_bits = 0, wrong_nans = 0;
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float ours = static_cast<float>(of_bits<T>(h)), theirs = reference_value<Reference>(h);
    const bool nan = std::isnan(theirs);
    wrong_values += nan ? !std::isnan(ours) : bits_of(ours) != bits_of(theirs);
    wrong_trips += nan ? !std::isnan(static_cast<float>(T(ours))) : T(ours).bits != h;
  }
  for (const float f : probes<T>()) {
    const T ours(f);
    if (std::isnan(f)) {
      wrong_nans += !std::isnan(static_cast<float>(ours)) || std::signbit(static_cast<float>(ours)) != std::signbit(f);
    } else {
      wrong_bits += ours.bits != reference_bits<Reference>(f);
    }
  }
  CHECK(wrong_values == 0);
  CHECK(wrong_trips == 0);
  CHECK(wrong_bits == 0);
  CHECK(wrong_nans == 0);
}

// The bulk functions give the bits of the scalar ones, NaN payloads included, at every place of a run.
template <class T>
void check_bulk() {
  std::vector<T> all(0x10000);
  for (uint32_t h = 0; h < 0x10000; ++h) all[h] = of_bits<T>(h);
  std::vector<float> wide(all.size());
  to_float(all.data(), wide.data(), static_cast<int64_t>(all.size()));
  int wrong = 0;
  for (size_t i = 0; i < all.size(); ++i) wrong += bits_of(wide[i]) != bits_of(static_cast<float>(all[i]));
  CHECK(wrong == 0);

  const std::vector<float> in = probes<T>();
  std::vector<T> narrow(in.size());
  from_float(in.data(), narrow.data(), static_cast<int64_t>(in.size()));
  wrong = 0;
  for (size_t i = 0; i < in.size(); ++i) wrong += narrow[i].bits != T(in[i]).bits;
  CHECK(wrong == 0);

  const std::vector<float> few = {1,       -2,
                                  3.0001f, 65520,
                                  1e-7f,   std::bit_cast<float>(0x7f812345u),
                                  -0.0f,   std::bit_cast<float>(0xffc00001u),
                                  5,       6,
                                  7,       8,
                                  9,       10,
                                  11,      12,
                                  13};
  for (size_t n = 0; n <= few.size(); ++n) {
    std::vector<T> out(few.size() + 1, of_bits<T>(0xabcd));
    from_float(few.data(), out.data(), static_cast<int64_t>(n));
    std::vector<float> back(few.size() + 1, 42.0f);
    to_float(out.data(), back.data(), static_cast<int64_t>(n));
    wrong = 0;
    for (size_t i = 0; i < n; ++i)
      wrong += out[i].bits != T(few[i]).bits || bits_of(back[i]) != bits_of(static_cast<float>(out[i]));
    CHECK(wrong == 0);
    CHECK(out[n].bits == 0xabcd);  // nothing beyond the run
    CHECK(back[n] == 42.0f);
  }
}

double half(double v) { return static_cast<float>(Half(static_cast<float>(v))); }
double bfloat(double v) { return static_cast<float>(BFloat16(static_cast<float>(v))); }
}  // namespace

TEST_CASE("half: all 65,536 values and the floats between them, against Eigen") { check_against<Half, Eigen::half>(); }
TEST_CASE("bfloat16: all 65,536 values and the floats between them, against Eigen") {
  check_against<BFloat16, Eigen::bfloat16>();
}
TEST_CASE("half: bulk conversions give the scalar bits") { check_bulk<Half>(); }
TEST_CASE("bfloat16: bulk conversions give the scalar bits") { check_bulk<BFloat16>(); }

TEST_CASE("half: range and ties (AMP.md 1)") {
  CHECK(half(65519.9) == 65504);
  CHECK(half(65520) == kInf);
  CHECK(half(-65520) == -kInf);
  CHECK(half(0x1p-25) == 0);  // a tie goes to even
  CHECK(half(1.01 * 0x1p-25) == 0x1p-24);
  CHECK(half(-1.01 * 0x1p-25) == -0x1p-24);
  CHECK(half(3 * 0x1p-25) == 0x1p-23);
  CHECK(half(1 + 0x1p-11) == 1);
  CHECK(half(1 + 3 * 0x1p-11) == 1 + 0x1p-9);
  CHECK(half(2048 + 1) == 2048);
  CHECK(half(2048 + 3) == 2052);
  CHECK(half(0x1p-14 - 0x1p-25) == 0x1p-14);  // the largest subnormal rounds up into the normals
  CHECK(Half(-0.0f).bits == 0x8000);
  CHECK(Half(-0x1p-26f).bits == 0x8000);
}

TEST_CASE("half: what AMP.md says about small numbers (2, 3, 4)") {
  CHECK(half(0x1p-26) == 0);
  CHECK(half(0x1p-26 * 1024) == 0x1p-16);
  CHECK(half(0x1p-26 * 1024) / 1024 == 0x1p-26);
  float w = 1;
  double alone = 1;
  for (int i = 0; i < 100; ++i) {
    w -= 1e-4f;
    alone = half(alone - 1e-4);
    if (i == 1) CHECK(half(w) == 1);
    if (i == 2) CHECK(half(w) == doctest::Approx(0.99951172).epsilon(1e-8));
  }
  CHECK(alone == 1);
  CHECK(w == doctest::Approx(0.989998).epsilon(1e-6));
  CHECK(half(w) == doctest::Approx(0.99023438).epsilon(1e-8));
  double ones = 0;
  for (int i = 0; i < 4096; ++i) ones = half(ones + 1);
  CHECK(ones == 2048);
}

TEST_CASE("bfloat16: range and ties") {
  CHECK(bfloat(1 + 0x1p-8) == 1);
  CHECK(bfloat(1 + 3 * 0x1p-8) == 1 + 0x1p-6);
  CHECK(bfloat(65520) == 65536);
  CHECK(bfloat(3.4e38) == kInf);  // rounds past the largest, 3.3895e38
  CHECK(bfloat(3.38e38) < kInf);
  CHECK(bfloat(0x1p-133) == 0x1p-133);  // the smallest subnormal
  CHECK(bfloat(0x1p-134) == 0);
}

TEST_CASE("dtype: names, sizes, parsing") {
  for (DType t : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::u8, DType::i32, DType::i64}) {
    CHECK(parse_dtype(name_of(t)) == t);
    dispatch_all(t, [&]<class T>() {
      CHECK(sizeof(T) == size_of(t));
      CHECK(dtype_of<T>() == t);
    });
  }
  CHECK(is_floating(DType::bf16));
  CHECK_FALSE(is_floating(DType::u8));
  CHECK(is_half(DType::f16));
  CHECK_FALSE(is_half(DType::f32));
  CHECK_THROWS_WITH_AS(parse_dtype("float"), "dtype: 'float' is unknown; use f64, f32, f16, bf16, u8, i32 or i64",
                       Error);
  CHECK_THROWS_WITH_AS(dispatch_floating(DType::i32, "thing", []<class T>() {}),
                       "thing: dtype i32 is not floating; cast it to f64, f32, f16 or bf16 first", Error);
}
