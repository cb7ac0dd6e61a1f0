// The build's flags must leave IEEE arithmetic alone: loss scaling and the checks for overflow rest on it.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace {
// volatile keeps the compiler from deciding at compile time.
template <class T>
void check_ieee() {
  using limits = std::numeric_limits<T>;
  volatile T infinity = limits::infinity(), nan = limits::quiet_NaN(), zero = 0, one = 1, largest = limits::max();

  CHECK(std::isinf(infinity));
  CHECK_FALSE(std::isfinite(infinity));
  CHECK_FALSE(std::isfinite(nan));
  CHECK(std::isnan(nan));
  CHECK(std::isnan(zero * infinity));
  CHECK(std::isinf(largest * T{2}));
  CHECK(nan != nan);
  CHECK_FALSE(nan > zero);
  CHECK_FALSE(nan <= zero);

  CHECK(std::signbit(-zero));
  CHECK(one / (-zero) == -infinity);
  volatile T small = limits::min();
  CHECK(small / T{2} > zero);  // subnormals are kept

  volatile T tiny = limits::epsilon() / 4;
  CHECK((one + tiny) - one == zero);  // no reassociation
  CHECK(std::isnan(std::sqrt(-one)));
}
}  // namespace

TEST_CASE("arithmetic keeps infinities, NaNs, signed zeros and subnormals") {
  check_ieee<float>();
  check_ieee<double>();
}
