// The pointwise ops and cast: values by hand, edge cases, every dtype against double, error texts.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "core/parallel.h"
#include "ops/ops.h"
#include "tests/error_of.h"

using namespace ht;

namespace {
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kPi = std::numbers::pi;

struct Result {
  std::vector<double> y, dx;
};
// f and its gradient for dy = 1 at the given points.
Result run(const std::function<Var(const Var&)>& f, std::initializer_list<double> x, DType dtype = DType::f64) {
  const Var v(Tensor::from(x, {static_cast<int64_t>(x.size())}, dtype), true);
  const Var y = f(v);
  CHECK(y.dtype() == dtype);
  y.backward(Tensor::full(y.shape(), 1, dtype));
  return {y.value().to_vector(), v.grad().to_vector()};
}

void check_values(const std::vector<double>& got, std::initializer_list<double> expected, double tolerance = 1e-14) {
  REQUIRE(got.size() == expected.size());
  size_t i = 0;
  for (const double e : expected) {
    CAPTURE(i);
    if (std::isnan(e)) {
      CHECK(std::isnan(got[i]));
    } else if (std::isinf(e)) {
      CHECK(got[i] == e);
    } else {
      CHECK(std::abs(got[i] - e) <= tolerance * std::max(1.0, std::abs(e)));
    }
    ++i;
  }
}

// One op with a reference in double and the interval of inputs on which it is compared.
struct Case {
  const char* name;
  Var (*f)(const Var&);
  double (*reference)(double);
  double (*derivative)(double);
  double low, high;
};
const Case kCases[] = {
    {"relu", [](const Var& x) { return relu(x); }, [](double x) { return x > 0 ? x : 0; },
     [](double x) { return x > 0 ? 1.0 : 0.0; }, -4, 4},
    {"sigmoid", [](const Var& x) { return sigmoid(x); }, [](double x) { return 1 / (1 + std::exp(-x)); },
     [](double x) { return std::exp(-x) / std::pow(1 + std::exp(-x), 2); }, -6, 6},
    {"tanh", [](const Var& x) { return tanh(x); }, [](double x) { return std::tanh(x); },
     [](double x) { return 1 / std::pow(std::cosh(x), 2); }, -3, 3},
    {"gelu", [](const Var& x) { return gelu(x); }, [](double x) { return x * 0.5 * (1 + std::erf(x / std::sqrt(2))); },
     [](double x) { return 0.5 * (1 + std::erf(x / std::sqrt(2))) + x * std::exp(-x * x / 2) / std::sqrt(2 * kPi); },
     -4, 4},
    {"exp", [](const Var& x) { return exp(x); }, [](double x) { return std::exp(x); },
     [](double x) { return std::exp(x); }, -4, 4},
    {"log", [](const Var& x) { return log(x); }, [](double x) { return std::log(x); }, [](double x) { return 1 / x; },
     0.1, 10},
    {"sqrt", [](const Var& x) { return sqrt(x); }, [](double x) { return std::sqrt(x); },
     [](double x) { return 0.5 / std::sqrt(x); }, 0.1, 10},
    {"rsqrt", [](const Var& x) { return rsqrt(x); }, [](double x) { return 1 / std::sqrt(x); },
     [](double x) { return -0.5 * std::pow(x, -1.5); }, 0.1, 10},
    {"reciprocal", [](const Var& x) { return reciprocal(x); }, [](double x) { return 1 / x; },
     [](double x) { return -1 / (x * x); }, 0.2, 10},
    {"neg", [](const Var& x) { return neg(x); }, [](double x) { return -x; }, [](double) { return -1.0; }, -4, 4},
    {"abs", [](const Var& x) { return abs(x); }, [](double x) { return std::abs(x); },
     [](double x) { return x > 0 ? 1.0 : -1.0; }, -4, 4},
    {"pow", [](const Var& x) { return pow(x, 1.75); }, [](double x) { return std::pow(x, 1.75); },
     [](double x) { return 1.75 * std::pow(x, 0.75); }, 0.1, 4},
    {"scale", [](const Var& x) { return scale(x, -2.5); }, [](double x) { return -2.5 * x; },
     [](double) { return -2.5; }, -4, 4},
    {"clamp", [](const Var& x) { return clamp(x, -1, 2); }, [](double x) { return std::min(std::max(x, -1.0), 2.0); },
     [](double x) { return x >= -1 && x <= 2 ? 1.0 : 0.0; }, -4, 4},
};
}  // namespace

// The inputs are exact in the dtype. Bounds are in units of its rounding error u, relative above 1 and absolute below:
// a 16-bit result is one rounding away from the FP32 one; a gradient made from a saved, rounded y (rsqrt: y cubed)
// multiplies that rounding by up to 3 and adds its own.
TEST_CASE("pointwise: every op and dtype against double") {
  const struct {
    DType dtype;
    double u;
  } kTypes[] = {{DType::f64, 0x1p-53}, {DType::f32, 0x1p-24}, {DType::f16, 0x1p-11}, {DType::bf16, 0x1p-8}};
  const int64_t n = 20011;  // odd, longer than a block and than a thread's part
  for (const Case& c : kCases) {
    for (const auto& [dtype, u] : kTypes) {
      CAPTURE(c.name);
      CAPTURE(dtype);
      const Tensor x = Tensor::uniform({n}, {1, 2}, c.low, c.high, dtype);
      const Var v(x, true);
      const Var y = c.f(v);
      y.backward(Tensor::full({n}, 1, dtype));
      double worst_y = 0, worst_dx = 0;
      const std::vector<double> xs = x.to_vector(), ys = y.value().to_vector(), dxs = v.grad().to_vector();
      for (size_t i = 0; i < xs.size(); ++i) {
        const double ey = c.reference(xs[i]), edx = c.derivative(xs[i]);
        worst_y = std::max(worst_y, std::abs(ys[i] - ey) / std::max(1.0, std::abs(ey)));
        worst_dx = std::max(worst_dx, std::abs(dxs[i] - edx) / std::max(1.0, std::abs(edx)));
      }
      CHECK(worst_y <= (is_half(dtype) ? 1.01 : 6) * u);
      CHECK(worst_dx <= (is_half(dtype) ? 4.01 : 6) * u);
    }
  }
}

TEST_CASE("pointwise: edge values") {
  const auto relu_ = run([](const Var& x) { return relu(x); }, {-1, 0, 2, kInf, -kInf, kNaN});
  check_values(relu_.y, {0, 0, 2, kInf, 0, kNaN});
  check_values({relu_.dx.begin(), relu_.dx.end() - 1}, {0, 0, 1, 1, 0});
  const auto abs_ = run([](const Var& x) { return abs(x); }, {-3, 0, 2, -kInf, kNaN});
  check_values(abs_.y, {3, 0, 2, kInf, kNaN});
  check_values({abs_.dx.begin(), abs_.dx.end() - 1}, {-1, 0, 1, -1});
  const auto clamp_ = run([](const Var& x) { return clamp(x, -1, 2); }, {-3, -1, 0, 2, 5, kInf, -kInf, kNaN});
  check_values(clamp_.y, {-1, -1, 0, 2, 2, 2, -1, kNaN});
  check_values({clamp_.dx.begin(), clamp_.dx.end() - 1}, {0, 1, 1, 1, 0, 0, 0});
  check_values(run([](const Var& x) { return clamp(x, -kInf, 0.5); }, {-7, 3}).y, {-7, 0.5});
  check_values(run([](const Var& x) { return clamp(x, 1, 1); }, {-7, 3}).y, {1, 1});

  const auto log_ = run([](const Var& x) { return log(x); }, {1, 0, -1, kInf, kNaN});
  check_values(log_.y, {0, -kInf, kNaN, kInf, kNaN});
  check_values({log_.dx.begin(), log_.dx.begin() + 2}, {1, kInf});
  const auto sqrt_ = run([](const Var& x) { return sqrt(x); }, {4, 0, -1, kInf});
  check_values(sqrt_.y, {2, 0, kNaN, kInf});
  check_values({sqrt_.dx.begin(), sqrt_.dx.begin() + 2}, {0.25, kInf});
  check_values(run([](const Var& x) { return rsqrt(x); }, {4, 0, -1, kInf}).y, {0.5, kInf, kNaN, 0});
  check_values(run([](const Var& x) { return reciprocal(x); }, {4, 0, -0.0, -kInf}).y, {0.25, kInf, -kInf, 0});
  check_values(run([](const Var& x) { return exp(x); }, {0, -kInf, 1000, kNaN}).y, {1, 0, kInf, kNaN});
  check_values(run([](const Var& x) { return neg(x); }, {1, -kInf, kNaN}).y, {-1, kInf, kNaN});
  CHECK(std::signbit(run([](const Var& x) { return neg(x); }, {0}).y[0]));
}

TEST_CASE("pointwise: sigmoid, tanh and gelu far out") {
  for (const DType dtype : {DType::f64, DType::f32}) {
    const auto s = run([](const Var& x) { return sigmoid(x); }, {0, -80, 80, -1000, 1000, kInf, -kInf, kNaN}, dtype);
    check_values(s.y, {0.5, 0, 1, 0, 1, 1, 0, kNaN});
    check_values(s.dx, {0.25, 0, 0, 0, 0, 0, 0, kNaN});
    CHECK(s.y[1] == doctest::Approx(std::exp(-80)).epsilon(1e-5));  // the tail keeps its relative precision
    CHECK(s.dx[1] == doctest::Approx(std::exp(-80)).epsilon(1e-5));
    const auto t = run([](const Var& x) { return tanh(x); }, {0, 50, -50, kInf, -kInf, kNaN}, dtype);
    check_values(t.y, {0, 1, -1, 1, -1, kNaN});
    check_values(t.dx, {1, 0, 0, 0, 0, kNaN});
    const auto g = run([](const Var& x) { return gelu(x); }, {0, -5, 60, -60, kInf, -kInf, kNaN}, dtype);
    check_values(g.y, {0, -1.4332578e-06, 60, 0, kInf, 0, kNaN}, 1e-12);
    CHECK(g.y[1] == doctest::Approx(-1.43325785e-06).epsilon(1e-5));
    check_values(g.dx, {0.5, -7.1469460e-06, 1, 0, 1, 0, kNaN}, 1e-11);
  }
}

TEST_CASE("pointwise: pow by exponent") {
  const auto square = run([](const Var& x) { return pow(x, 2); }, {3, -3, 0, kNaN});
  check_values(square.y, {9, 9, 0, kNaN});
  check_values(square.dx, {6, -6, 0, kNaN});
  const auto cube = run([](const Var& x) { return pow(x, 3); }, {2, -2, 0});
  check_values(cube.y, {8, -8, 0});
  check_values(cube.dx, {12, 12, 0});
  const auto zero = run([](const Var& x) { return pow(x, 0); }, {2, 0, -1});
  check_values(zero.y, {1, 1, 1});
  check_values(zero.dx, {0, 0, 0});
  const auto one = run([](const Var& x) { return pow(x, 1); }, {2, 0, -1});
  check_values(one.y, {2, 0, -1});
  check_values(one.dx, {1, 1, 1});
  const auto inverse = run([](const Var& x) { return pow(x, -1); }, {2, -4, 0});
  check_values(inverse.y, {0.5, -0.25, kInf});
  check_values(inverse.dx, {-0.25, -0.0625, -kInf});
  CHECK(std::isnan(run([](const Var& x) { return pow(x, 0.5); }, {-1}).y[0]));
}

TEST_CASE("pointwise: half overflows to inf, FP32 inside") {
  CHECK(run([](const Var& x) { return pow(x, 2); }, {300}, DType::f16).y[0] == kInf);
  CHECK(run([](const Var& x) { return exp(x); }, {11.5}, DType::f16).y[0] == kInf);
  CHECK(run([](const Var& x) { return scale(x, 0.5); }, {65504}, DType::f16).y[0] == 32752);
  CHECK(run([](const Var& x) { return scale(x, 1e6); }, {0x1p-10}, DType::f16).y[0] == 976.5);
}

TEST_CASE("pointwise: a masked gradient is 0 even where dy is infinite") {
  const Var x(Tensor::from({-1, 1}, {2}), true);
  for (const auto& f : {std::function([](const Var& v) { return relu(v); }),
                        std::function([](const Var& v) { return clamp(v, 0, 2); })}) {
    x.zero_grad();
    f(x).backward(Tensor::full({2}, kInf));
    check_values(x.grad().to_vector(), {0, kInf});
  }
}

TEST_CASE("pointwise: zero-size, scalars, and the same bits for any thread count") {
  for (const Case& c : kCases) {
    const Var none(Tensor::empty({0, 3}), true);
    const Var y = c.f(none);
    CHECK(y.shape() == Shape{0, 3});
    y.backward(Tensor::empty({0, 3}));
    CHECK(none.grad().shape() == Shape{0, 3});
    CHECK(c.f(Var(Tensor::full({}, 1))).shape() == Shape{});
  }
  const Tensor x = Tensor::normal({3, 33331}, {5, 0});
  const int threads = num_threads();
  set_num_threads(1);
  const std::vector<double> one = gelu(Var(x)).value().to_vector();
  set_num_threads(3);
  CHECK(gelu(Var(x)).value().to_vector() == one);
  set_num_threads(threads);
}

TEST_CASE("pointwise: errors") {
  const Var x(Tensor::zeros({2, 3})), labels(Tensor::zeros({4}, DType::i64));
  for (const Case& c : kCases)
    CHECK(error_of([&] { c.f(labels); }) == str(c.name, ": x must be floating; cast() it first (x [4] i64 cpu)"));
  CHECK(error_of([&] { clamp(x, 2, 1); }) == "clamp: low 2 is above high 1 (x [2,3] f32 cpu)");
  CHECK(error_of([&] { clamp(x, kNaN, 1); }) == "clamp: a bound is nan: low nan, high 1 (x [2,3] f32 cpu)");
  CHECK(error_of([&] { pow(x, kNaN); }) == "pow: the exponent is nan, it must be finite (x [2,3] f32 cpu)");
  CHECK(error_of([&] { pow(x, kInf); }) == "pow: the exponent is inf, it must be finite (x [2,3] f32 cpu)");
  CHECK(error_of([&] { scale(x, kNaN); }) == "scale: the factor is nan, it must be a number (x [2,3] f32 cpu)");
  CHECK(error_of([&] { relu(Var()); }) == "relu: input 0 is undefined");
}

TEST_CASE("pointwise: writing a saved tensor before backward is an error") {
  const Var x(Tensor::full({2}, 1), true);
  const Var y = log(x);
  x.value().fill_(3);
  CHECK(error_of([&] { y.backward(Tensor::full({2}, 1)); }).find("backward of log: a saved tensor was written") == 0);
  const Var z = neg(x);  // saves nothing
  x.value().fill_(4);
  z.backward(Tensor::full({2}, 1));
  CHECK(x.grad().to_vector() == std::vector<double>{-1, -1});
}

TEST_CASE("cast: values and gradients between every pair of floating dtypes") {
  const DType floating[] = {DType::f64, DType::f32, DType::f16, DType::bf16};
  for (const DType from : floating) {
    for (const DType to : floating) {
      CAPTURE(from);
      CAPTURE(to);
      const Var x(Tensor::from({1, -2.5, 0.1, kInf, kNaN}, {5}, from), true);
      const Var y = cast(x, to);
      CHECK(y.dtype() == to);
      check_values(y.value().to_vector(), {1, -2.5, 0.1, kInf, kNaN}, 0x1p-8);
      CHECK(y.value().same_storage(x.value()) == (from == to));
      (y * 3).backward(Tensor::full({5}, 1, to));
      CHECK(x.grad().dtype() == from);
      CHECK(x.grad_slot().dtype() == from);
      CHECK(x.grad().to_vector() == std::vector<double>(5, 3));
    }
  }
}

TEST_CASE("cast: rounding, range, integers") {
  const Var x(Tensor::from({65519.9, 65520, 0x1p-25, 1.01 * 0x1p-25, 1 + 0x1p-11, 1 + 3 * 0x1p-11}, {6}));
  check_values(cast(x, DType::f16).value().to_vector(), {65504, kInf, 0, 0x1p-24, 1, 1 + 0x1p-9}, 0);
  const Var labels(Tensor::from({0, 3, 255}, {3}, DType::u8));
  const Var f = cast(labels, DType::f32);
  CHECK(f.value().to_vector() == std::vector<double>{0, 3, 255});
  CHECK(!f.requires_grad());
  CHECK(cast(labels, DType::u8).value().same_storage(labels.value()));
  CHECK(cast(Var(Tensor::empty({0, 2})), DType::bf16).shape() == Shape{0, 2});
  CHECK(error_of([&] { cast(f, DType::i32); }) ==
        "cast: the target i32 is not floating; use f64, f32, f16 or bf16 (x [3] f32 cpu)");
}
