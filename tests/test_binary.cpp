// add, sub, mul, div with broadcasting, reduce_to behind their gradients, and the operators.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "core/parallel.h"
#include "ops/ops.h"
#include "ops/reduce_to.h"
#include "tests/error_of.h"

using namespace ht;

namespace {
constexpr double kInf = std::numeric_limits<double>::infinity();
using Values = std::vector<double>;

struct Case {
  const char* name;
  Var (*f)(const Var&, const Var&);
  double (*reference)(double, double);
  double (*da)(double, double);
  double (*db)(double, double);
};
const Case kCases[] = {
    {"add", add, [](double a, double b) { return a + b; }, [](double, double) { return 1.0; },
     [](double, double) { return 1.0; }},
    {"sub", sub, [](double a, double b) { return a - b; }, [](double, double) { return 1.0; },
     [](double, double) { return -1.0; }},
    {"mul", mul, [](double a, double b) { return a * b; }, [](double, double b) { return b; },
     [](double a, double) { return a; }},
    {"div", div, [](double a, double b) { return a / b; }, [](double, double b) { return 1 / b; },
     [](double a, double b) { return -a / (b * b); }},
};

// The flat index into a contiguous tensor of shape `s`, right-aligned in `out`, that element i of `out` meets.
int64_t source_index(int64_t i, const Shape& out, const Shape& s) {
  int64_t index = 0, step = 1;
  for (int k = 1; k <= s.rank(); ++k) {
    if (s[-k] != 1) index += i % out[-k] * step;
    step *= s[-k];
    i /= out[-k];
  }
  return index;
}

// Sums x over the broadcast axes in double, the plain way.
Values reduced(const Values& x, const Shape& from, const Shape& to) {
  Values sums(static_cast<size_t>(to.numel()));
  for (int64_t i = 0; i < from.numel(); ++i)
    sums[static_cast<size_t>(source_index(i, from, to))] += x[static_cast<size_t>(i)];
  return sums;
}

double relative_l2(const Values& got, const Values& expected) {
  REQUIRE(got.size() == expected.size());
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
}

const std::pair<Shape, Shape> kPairs[] = {
    {{}, {}},
    {{1}, {}},
    {{}, {5}},
    {{17}, {17}},
    {{1}, {2, 3}},
    {{3, 5}, {5}},
    {{3, 1}, {5}},
    {{700, 3}, {700, 1}},
    {{2, 3, 4}, {3, 1}},
    {{2, 1, 3, 1}, {1, 4, 1, 5}},
    {{5, 1, 2, 2}, {5, 3, 2, 2}},
    {{2, 7, 7, 24}, {24}},
    {{2, 7, 7, 24}, {2, 1, 1, 24}},
    {{1, 1, 1, 1, 1, 1, 1, 2}, {2, 1, 2, 1, 2, 1, 3, 1}},
    {{40001}, {1}},
    {{3, 1031}, {3, 1031}},
};
}  // namespace

TEST_CASE("binary: every op, dtype and broadcast against double, values and both gradients") {
  const struct {
    DType dtype;
    double u;
  } kTypes[] = {{DType::f64, 0x1p-53}, {DType::f32, 0x1p-24}, {DType::f16, 0x1p-11}, {DType::bf16, 0x1p-8}};
  for (const Case& c : kCases) {
    for (const auto& [sa, sb] : kPairs) {
      for (const auto& [dtype, u] : kTypes) {
        CAPTURE(c.name);
        CAPTURE(sa);
        CAPTURE(sb);
        CAPTURE(dtype);
        const Var a(Tensor::uniform(sa, {1, 0}, -2, 2, dtype), true);
        const Var b(Tensor::uniform(sb, {1, 1}, 0.5, 2, dtype), true);
        const Var y = c.f(a, b);
        const Shape& out = y.shape();
        REQUIRE(out == broadcast(sa, sb, "test"));
        REQUIRE(y.dtype() == dtype);
        const Tensor dy = Tensor::uniform(out, {1, 2}, 0.5, 1.5, dtype);
        y.backward(dy);

        const Values va = a.value().to_vector(), vb = b.value().to_vector(), seed = dy.to_vector();
        Values ey(seed.size()), ea(seed.size()), eb(seed.size());
        for (int64_t i = 0; i < out.numel(); ++i) {
          const size_t k = static_cast<size_t>(i);
          const double x = va[static_cast<size_t>(source_index(i, out, sa))];
          const double z = vb[static_cast<size_t>(source_index(i, out, sb))];
          ey[k] = c.reference(x, z);
          ea[k] = seed[k] * c.da(x, z);
          eb[k] = seed[k] * c.db(x, z);
        }
        // One rounding of y; a gradient has a few in each summand and one in the sum, where signs may cancel.
        CHECK(relative_l2(y.value().to_vector(), ey) <= 1.01 * u);
        CHECK(relative_l2(a.grad().to_vector(), reduced(ea, out, sa)) <= 8 * u);
        CHECK(relative_l2(b.grad().to_vector(), reduced(eb, out, sb)) <= 64 * u);
      }
    }
  }
}

TEST_CASE("binary: by hand") {
  const Var a(Tensor::from({1, 2, 3, 4, 5, 6}, {2, 3}), true);
  const Var b(Tensor::from({10, 20, 30}, {3}), true);
  CHECK(add(a, b).value().to_vector() == Values{11, 22, 33, 14, 25, 36});
  CHECK(sub(a, b).value().to_vector() == Values{-9, -18, -27, -6, -15, -24});
  CHECK(mul(b, a).value().to_vector() == Values{10, 40, 90, 40, 100, 180});
  CHECK(div(b, a).value().to_vector() == Values{10, 10, 10, 2.5, 4, 5});
  const Tensor dy = Tensor::from({1, 2, 3, 4, 5, 6}, {2, 3});
  mul(a, b).backward(dy);
  CHECK(a.grad().to_vector() == Values{10, 40, 90, 40, 100, 180});
  CHECK(b.grad().to_vector() == Values{17, 29, 45});
  b.zero_grad();
  sub(a, b).backward(dy);
  CHECK(b.grad().to_vector() == Values{-5, -7, -9});
  CHECK(b.grad().shape() == Shape{3});

  const Var num(Tensor::from({1, -1, 0, kInf}, {4})), zero(Tensor::zeros({}));
  const Values q = div(num, zero).value().to_vector();
  CHECK(q[0] == kInf);
  CHECK(q[1] == -kInf);
  CHECK(std::isnan(q[2]));
  CHECK(std::isnan(sub(num, num).value().at(3)));
  // b^2 = 1e40 is beyond FP32, the quotient's gradient is not.
  const Var n(Tensor::from({1e20}, {1}), true), d(Tensor::from({1e20}, {1}), true);
  div(n, d).backward();
  CHECK(d.grad().at(0) == doctest::Approx(-1e-20));
}

TEST_CASE("binary: a Var used twice, and operators") {
  const Var x(Tensor::from({3, -2}, {2}), true);
  (x * x).backward(Tensor::from({1, 10}, {2}));
  CHECK(x.grad().to_vector() == Values{6, -40});
  x.zero_grad();
  (x + x).backward(Tensor::full({2}, 1));
  CHECK(x.grad().to_vector() == Values{2, 2});
  x.zero_grad();
  (x - x).backward(Tensor::full({2}, 1));
  CHECK(x.grad().to_vector() == Values{0, 0});
  x.zero_grad();
  const Var y = 2.0 * x * x / (x + x) - (-x) * 0.5;  // = 1.5 x
  CHECK(y.value().to_vector() == Values{4.5, -3});
  y.backward(Tensor::full({2}, 1));
  CHECK(x.grad().to_vector() == Values{1.5, 1.5});
}

TEST_CASE("binary: only the gradients that are wanted, and what add keeps") {
  const Var a(Tensor::full({4}, 2), true), b(Tensor::full({4}, 3));
  mul(a, b).backward(Tensor::full({4}, 1));
  CHECK(a.grad().to_vector() == Values{3, 3, 3, 3});
  CHECK(!b.grad().defined());
  const Var y = add(a, b);  // keeps no operand, so writing one is fine
  a.value().fill_(7);
  a.zero_grad();
  y.backward(Tensor::full({4}, 1));
  CHECK(a.grad().to_vector() == Values{1, 1, 1, 1});
  const Var z = div(a, b);
  b.value().fill_(1);
  CHECK(error_of([&] { z.backward(Tensor::full({4}, 1)); }).find("backward of div: a saved tensor was written") == 0);
}

TEST_CASE("binary: add hands dy on, and the two slots do not share memory") {
  const Var a(Tensor::full({4}, 2), true), b(Tensor::full({4}, 3), true);
  const Tensor seed = Tensor::full({4}, 1);
  add(a, b).backward(seed);
  CHECK(!a.grad_slot().same_storage(b.grad_slot()));
  CHECK(!a.grad_slot().same_storage(seed));
  CHECK(!b.grad_slot().same_storage(seed));
}

TEST_CASE("binary: zero-size") {
  for (const Case& c : kCases) {
    CAPTURE(c.name);
    const Var a(Tensor::empty({0, 3}), true), b(Tensor::full({3}, 1), true), s(Tensor::full({}, 1), true);
    const Var none(Tensor::empty({2, 0}), true), one(Tensor::full({2, 1}, 1), true);
    c.f(a, b).backward(Tensor::empty({0, 3}));
    CHECK(a.grad().shape() == Shape{0, 3});
    CHECK(b.grad().to_vector() == Values{0, 0, 0});
    c.f(s, a).backward(Tensor::empty({0, 3}));
    CHECK(s.grad().to_vector() == Values{0});
    c.f(none, one).backward(Tensor::empty({2, 0}));
    CHECK(one.grad().to_vector() == Values{0, 0});
    CHECK(none.grad().shape() == Shape{2, 0});
    CHECK(c.f(Var(Tensor::empty({0, 1})), Var(Tensor::empty({1, 0}))).shape() == Shape{0, 0});
  }
}

TEST_CASE("binary: errors") {
  const Var a(Tensor::zeros({2, 3})), b(Tensor::zeros({4})), h(Tensor::zeros({3}, DType::f16)),
      i(Tensor::zeros({3}, DType::i64));
  for (const Case& c : kCases) {
    const std::string op = c.name;
    CHECK(error_of([&] { c.f(a, b); }) ==
          op + ": axis -1 is 3 in a but 4 in b; sizes must agree or be 1 (a [2,3] f32 cpu, b [4] f32 cpu)");
    CHECK(error_of([&] { c.f(a, h); }) ==
          op + ": a is f32 but b is f16; cast() one of them or use autocast (a [2,3] f32 cpu, b [3] f16 cpu)");
    CHECK(error_of([&] { c.f(a, i); }) ==
          op + ": b must be floating; cast() it first (a [2,3] f32 cpu, b [3] i64 cpu)");
    CHECK(error_of([&] { c.f(i, a); }) ==
          op + ": a must be floating; cast() it first (a [3] i64 cpu, b [2,3] f32 cpu)");
    CHECK(error_of([&] { c.f(a, Var()); }) == op + ": input 1 is undefined");
  }
}

TEST_CASE("plan_broadcast: axes are dropped and merged") {
  const auto plan = [](const Shape& a, const Shape& b) { return plan_broadcast(a, b, broadcast(a, b, "test")); };
  CHECK(plan({2, 3, 4}, {2, 3, 4}).rank == 1);
  CHECK(plan({2, 3, 4}, {2, 3, 4}).sizes[0] == 24);
  CHECK(plan({2, 3, 4}, {1}).rank == 1);
  CHECK(plan({2, 3, 4}, {1}).b_stride() == 0);
  const BroadcastPlan channels = plan({2, 5, 5, 3}, {3});
  CHECK(channels.rank == 2);
  CHECK(channels.sizes[0] == 50);
  CHECK(channels.sizes[1] == 3);
  CHECK(channels.b_strides[0] == 0);
  CHECK(plan({2, 1, 1, 3}, {2, 5, 5, 3}).rank == 3);
  CHECK(plan({}, {}).rank == 1);
}

TEST_CASE("reduce_to: every pattern of axes, several thread counts, same bits") {
  Context& ctx = Context::of(Device::cpu());
  const Shape from{3, 40, 5, 130};
  const int threads = num_threads();
  for (int mask = 0; mask < 16; ++mask) {
    Shape to = from;
    for (int axis = 0; axis < 4; ++axis)
      if (mask >> axis & 1) to = to.with(axis, 1);
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      CAPTURE(to);
      CAPTURE(dtype);
      const Tensor x = Tensor::uniform(from, {9, 0}, -0.5, 1, dtype);
      set_num_threads(1);
      const Tensor y = reduce_to(ctx, x, to);
      set_num_threads(3);
      const Tensor again = reduce_to(ctx, x, to);
      set_num_threads(threads);
      CHECK(y.shape() == to);
      CHECK(y.dtype() == dtype);
      CHECK(y.to_vector() == again.to_vector());
      const double u = dtype == DType::f16    ? 0x1p-11
                       : dtype == DType::bf16 ? 0x1p-8
                       : dtype == DType::f32  ? 1e-6
                                              : 1e-14;
      CHECK(relative_l2(y.to_vector(), reduced(x.to_vector(), from, to)) <= 1.01 * u);
    }
  }
}

TEST_CASE("reduce_to: accumulation is FP32 and cut into parts, views where nothing is summed") {
  Context& ctx = Context::of(Device::cpu());
  CHECK(reduce_to(ctx, Tensor::full({4096}, 1, DType::f16), {}).item() == 4096);  // a half sum stops at 2048
  CHECK(reduce_to(ctx, Tensor::full({4096}, 0.1, DType::f16), {1}).item() == 409.5);
  CHECK(reduce_to(ctx, Tensor::full({20000, 3}, 1, DType::bf16), {3}).to_vector() == Values{19968, 19968, 19968});
  // One running FP32 sum of 2^21 tenths drifts by more than 1e-3 relative; short segments keep it small.
  for (const Shape& to : {Shape{}, Shape{2}}) {
    const Tensor y = reduce_to(ctx, Tensor::full({1 << 21, 2}, 0.1), to);
    const double n = (1 << 22) / static_cast<double>(y.numel());
    for (const double v : y.to_vector()) CHECK(v == doctest::Approx(0.1 * n).epsilon(2e-5));
  }
  const Tensor x = Tensor::full({1, 3}, 2);
  CHECK(reduce_to(ctx, x, {1, 3}).same_storage(x));
  CHECK(reduce_to(ctx, x, {3}).same_storage(x));
  CHECK(reduce_to(ctx, Tensor::full({3, 0}, 1), {}).item() == 0);
  CHECK(reduce_to(ctx, Tensor::full({3, 0}, 1), {1, 0}).shape() == Shape{1, 0});
  CHECK(error_of([&] { reduce_to(ctx, x, {2}); }).find("reduce_to: ") == 0);
  CHECK(error_of([&] {
          reduce_to(ctx, x, {4, 1, 3});
        }) == "reduce_to: shape [4,1,3] does not broadcast to x (x [1,3] f32 cpu)");
}
