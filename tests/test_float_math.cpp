// The vectorised functions of floats against the standard library's in double, over all of float's range.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "ops/float_math.h"

using namespace ht;

namespace {
// The largest error over every 1009th float, in units of the last place; infinite where NaN or infinity is missed.
template <class F, class G>
double worst_ulp(F f, G reference) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  double worst = 0;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 1009) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits)), got = f(x);
    const double exact = reference(static_cast<double>(x));
    const float want = static_cast<float>(exact);
    if (got == want || (std::isnan(got) && std::isnan(want))) continue;
    const float last = std::nextafter(std::abs(want), std::numeric_limits<float>::infinity()) - std::abs(want);
    const double error = std::isfinite(got) && std::isfinite(want) ? std::abs(got - exact) / last : kInf;
    worst = std::max(worst, error);
  }
  return worst;
}
}  // namespace

TEST_CASE("float functions are within a few units of the last place, subnormals and overflow included") {
  CHECK(worst_ulp([](float x) { return fn::exp(x); }, [](double x) { return std::exp(x); }) < 1.1);
  CHECK(worst_ulp([](float x) { return fn::tanh(x); }, [](double x) { return std::tanh(x); }) < 2.7);
  CHECK(worst_ulp([](float x) { return fn::normal(x).bell; }, [](double x) { return std::exp(-x * x / 2); }) < 1.4);
  CHECK(worst_ulp([](float x) { return fn::normal(x).cdf; },
                  [](double x) { return std::erfc(-x / std::sqrt(2)) / 2; }) < 7);
}

TEST_CASE("float functions at special values") {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  CHECK(fn::exp(0.0f) == 1);
  CHECK(fn::exp(kInf) == kInf);
  CHECK(fn::exp(-kInf) == 0);
  CHECK(std::isnan(fn::exp(kNaN)));
  CHECK(std::signbit(fn::tanh(-0.0f)));
  CHECK(fn::tanh(-kInf) == -1);
  CHECK(fn::normal(kInf).cdf == 1);
  CHECK(fn::normal(-kInf).cdf == 0);
  CHECK(fn::exp(1.0) == std::exp(1.0));  // double: the standard's own
}
