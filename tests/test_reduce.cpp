// Reductions against naive loops over every choice of axes, by hand, and at the edges.
#include <doctest/doctest.h>

#include <cmath>

#include "core/parallel.h"
#include "ops/ops.h"
#include "ops/registry.h"
#include "tests/error_of.h"

using namespace ht;

namespace {
using Values = std::vector<double>;

// The values behind each output, in order, found by decomposing every flat index.
std::vector<Values> behind(const Tensor& x, unsigned mask) {
  int64_t outputs = 1;
  for (int d = 0; d < x.rank(); ++d)
    if (!(mask >> d & 1)) outputs *= x.dim(d);
  std::vector<Values> groups(static_cast<size_t>(outputs));
  const Values v = x.to_vector();
  for (int64_t i = 0; i < x.numel(); ++i) {
    int64_t rest = i, out = 0, stride = 1;
    for (int d = x.rank() - 1; d >= 0; --d) {
      const int64_t index = rest % x.dim(d);
      rest /= x.dim(d);
      if (mask >> d & 1) continue;
      out += index * stride;
      stride *= x.dim(d);
    }
    groups[static_cast<size_t>(out)].push_back(v[static_cast<size_t>(i)]);
  }
  return groups;
}

double naive_sum(const Values& v) {
  double s = 0;
  for (const double x : v) s += x;
  return s;
}
double naive_mean(const Values& v) { return naive_sum(v) / static_cast<double>(v.size()); }
double naive_var(const Values& v) {
  double s = 0;
  for (const double x : v) s += (x - naive_mean(v)) * (x - naive_mean(v));
  return s / std::max<double>(0, static_cast<double>(v.size()) - 1);
}
double naive_norm(const Values& v) {
  double s = 0;
  for (const double x : v) s += x * x;
  return std::sqrt(s);
}

struct Case {
  const char* name;
  Var (*op)(const Var&, const ReduceOptions&);
  double (*naive)(const Values&);
};
const Case cases[] = {
    {"sum", [](const Var& x, const ReduceOptions& o) { return sum(x, o); }, naive_sum},
    {"mean", [](const Var& x, const ReduceOptions& o) { return mean(x, o); }, naive_mean},
    {"var", [](const Var& x, const ReduceOptions& o) { return var(x, o); }, naive_var},
    {"norm", [](const Var& x, const ReduceOptions& o) { return norm(x, o); }, naive_norm},
};

std::vector<int> axes_of(unsigned mask) {
  std::vector<int> axes;
  for (int d = 0; d < 8; ++d)
    if (mask >> d & 1) axes.push_back(d);
  return axes;
}

Var leaf(const Tensor& t) { return Var(t, true); }
}  // namespace

TEST_CASE("every reduction over every choice of axes is the naive one, in every dtype") {
  const Shape shapes[] = {{5},        {3, 4},    {2, 3, 5},         {1, 4, 1, 3}, {2, 3, 2, 3, 2},
                          {70, 1, 3}, {3, 1100}, {2, 1, 2, 1, 3, 2}};
  for (const Shape& shape : shapes) {
    const Tensor x64 = Tensor::uniform(shape, {1, 2}, -1, 2, DType::f64);
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      const Tensor x = x64.to(dtype);
      const double tolerance = dtype == DType::f64   ? 1e-12
                               : dtype == DType::f32 ? 1e-5
                               : dtype == DType::f16 ? 1.0 / 1024
                                                     : 1.0 / 128;  // one rounding of the output
      for (unsigned mask = 1; mask < 1u << shape.rank(); ++mask) {
        const std::vector<Values> groups = behind(x, mask);
        for (const Case& c : cases) {
          for (const bool keepdim : {false, true}) {
            const Tensor y = c.op(Var(x), {axes_of(mask), keepdim}).value();
            CAPTURE(c.name);
            CAPTURE(str(shape, " ", dtype, " mask ", mask, " keepdim ", keepdim));
            REQUIRE(y.dtype() == dtype);
            REQUIRE(y.numel() == static_cast<int64_t>(groups.size()));
            REQUIRE(y.rank() == (keepdim ? shape.rank() : shape.rank() - static_cast<int>(axes_of(mask).size())));
            if (keepdim)
              for (int d = 0; d < shape.rank(); ++d) REQUIRE(y.dim(d) == (mask >> d & 1 ? 1 : shape[d]));
            for (size_t o = 0; o < groups.size(); ++o) {
              const double want = c.naive(groups[o]), got = y.at(static_cast<int64_t>(o));
              double size = 1e-2;  // of the terms: sums may cancel
              for (const double v : groups[o]) size += std::abs(v);
              if (std::isnan(want)) {
                REQUIRE(std::isnan(got));
              } else {
                REQUIRE(std::abs(got - want) <=
                        tolerance * std::max(std::abs(want), dtype == DType::f64 ? size : 1e-3 * size));
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("negative axes, no axes, scalars") {
  const Var x(Tensor::from({1, 2, 3, 4, 5, 6}, {2, 3}));
  CHECK(sum(x).value().rank() == 0);
  CHECK(sum(x).item() == 21);
  CHECK(sum(x, {{-1}}).value().to_vector() == Values{6, 15});
  CHECK(sum(x, {{-2}, true}).shape() == Shape{1, 3});
  CHECK(mean(x, {{0}}).value().to_vector() == Values{2.5, 3.5, 4.5});
  CHECK(var(x, {{1}}).value().to_vector() == Values{1, 1});
  CHECK(var(x, {}, 0).item() == doctest::Approx(35.0 / 12));
  CHECK(norm(Var(Tensor::from({3, 4}, {2}))).item() == 5);
  const Var scalar(Tensor::full({}, -3));
  CHECK(sum(scalar).item() == -3);
  CHECK(mean(scalar).item() == -3);
  CHECK(norm(scalar).item() == 3);
}

TEST_CASE("FP32 accumulation of 16-bit inputs") {
  CHECK(sum(Var(Tensor::full({4096}, 1, DType::f16))).item() == 4096);
  CHECK(sum(Var(Tensor::full({4096}, 0.1, DType::f16))).item() == 409.5);
  CHECK(sum(Var(Tensor::full({4096, 3}, 1, DType::f16)), {{0}}).value().to_vector() == Values{4096, 4096, 4096});
  CHECK(sum(Var(Tensor::full({1000, 64}, 1, DType::bf16)), {{0}}).value().at(5) == 1000);
  CHECK(norm(Var(Tensor::full({4}, 300, DType::f16))).item() == 600);  // 300^2 is inf in half
  CHECK(mean(Var(Tensor::full({100000}, 2, DType::f16))).item() == 2);
}

TEST_CASE("large FP32 sums stay accurate") {
  const int64_t n = (1 << 24) + 3;  // a plain FP32 loop of ones stops at 2^24, of 0.1 it is 1e-2 off
  const Tensor x = Tensor::full({n}, 0.1);
  const double want = static_cast<double>(n) * static_cast<double>(0.1f);
  CHECK(std::abs(sum(Var(x)).item() - want) <= 2e-7 * want);
  CHECK(std::abs(mean(Var(x)).item() - static_cast<double>(0.1f)) <= 2e-8);
  const Var tall(Tensor::full({1 << 20, 3}, 0.1));
  for (int c = 0; c < 3; ++c)
    CHECK(std::abs(sum(tall, {{0}}).value().at(c) - static_cast<double>(0.1f) * (1 << 20)) <= 2e-2);
  // One pass (E[x^2] - E[x]^2) would lose everything here.
  const Var far(Tensor::from({10000.0, 10001.0, 10002.0}, {3}));
  CHECK(var(far).item() == 1);
}

TEST_CASE("a reduction gives the same bits on any number of threads") {
  const Tensor x = Tensor::uniform({300, 7, 100}, {3, 4}, -1, 1);
  const int before = num_threads();
  for (const Case& c : cases) {
    for (unsigned mask = 1; mask < 8; ++mask) {
      set_num_threads(1);
      const Values one = c.op(Var(x), {axes_of(mask)}).value().to_vector();
      set_num_threads(3);
      CHECK(one == c.op(Var(x), {axes_of(mask)}).value().to_vector());
    }
  }
  set_num_threads(before);
}

TEST_CASE("empty reductions: sum 0, norm 0, mean and var NaN") {
  const Var x(Tensor::zeros({0, 3}));
  CHECK(sum(x).item() == 0);
  CHECK(norm(x).item() == 0);
  CHECK(std::isnan(mean(x).item()));
  CHECK(std::isnan(var(x).item()));
  CHECK(sum(x, {{0}}).value().to_vector() == Values{0, 0, 0});
  CHECK(std::isnan(mean(x, {{0}}).value().at(2)));
  CHECK(sum(x, {{1}}).shape() == Shape{0});
  CHECK(sum(Var(Tensor::zeros({3, 0})), {{1}}).value().to_vector() == Values{0, 0, 0});
  CHECK(std::isnan(var(Var(Tensor::from({5}, {1}))).item()));  // one element, correction 1
  CHECK(var(Var(Tensor::from({5}, {1})), {}, 0).item() == 0);

  const Var grad = leaf(Tensor::zeros({0, 3}));
  mean(grad, {{0}}).backward(Tensor::full({3}, 1));
  CHECK(grad.grad().shape() == Shape{0, 3});
}

TEST_CASE("gradients by hand, and in half") {
  const Var x = leaf(Tensor::from({1, 2, 3, 4, 5, 6}, {2, 3}));
  sum(x, {{0}}).backward(Tensor::from({1, 10, 100}, {3}));
  CHECK(x.grad().to_vector() == Values{1, 10, 100, 1, 10, 100});
  x.zero_grad();
  mean(x, {{1}}).backward(Tensor::from({3, 6}, {2}));
  CHECK(x.grad().to_vector() == Values{1, 1, 1, 2, 2, 2});
  x.zero_grad();
  var(x, {{1}}).backward(Tensor::from({1, 2}, {2}));
  CHECK(x.grad().to_vector() == Values{-1, 0, 1, -2, 0, 2});

  const Var zero = leaf(Tensor::from({0, 0, 3, 4}, {2, 2}));
  norm(zero, {{1}}).backward(Tensor::from({5, 5}, {2}));
  CHECK(zero.grad().to_vector() == Values{0, 0, 3, 4});

  const Var half = leaf(Tensor::from({3, 4}, {2}, DType::f16));
  norm(half).backward();
  CHECK(half.grad().dtype() == DType::f16);
  CHECK(half.grad().at(0) == doctest::Approx(0.6).epsilon(1e-3));
}

TEST_CASE("NaN and infinity pass through") {
  const Var x(Tensor::from({1, NAN, 2, INFINITY}, {2, 2}));
  CHECK(std::isnan(sum(x, {{1}}).value().at(0)));
  CHECK(sum(x, {{1}}).value().at(1) == INFINITY);
  CHECK(std::isnan(norm(x, {{1}}).value().at(0)));
}

TEST_CASE("bad axes and dtypes are named") {
  const Var x(Tensor::zeros({2, 3}));
  CHECK(error_of([&] { sum(x, {{2}}); }) == "sum: axis 2 is out of range for rank 2 (x [2,3] f32 cpu)");
  CHECK(error_of([&] { mean(x, {{-3}}); }) == "mean: axis -3 is out of range for rank 2 (x [2,3] f32 cpu)");
  CHECK(error_of([&] { var(x, {{0, -2}}); }) == "var: axis -2 is named twice (x [2,3] f32 cpu)");
  CHECK(error_of([&] { norm(Var(Tensor::zeros({2}, DType::i32))); }) ==
        "norm: the input must be floating; cast() it first (x [2] i32 cpu)");
  CHECK(error_of([&] { var(x, {}, -1); }) == "var: correction is -1 but must be 0 or more (x [2,3] f32 cpu)");
  CHECK(error_of([&] { sum(Var(Tensor::zeros({})), {{0}}); }) ==
        "sum: axis 0 is out of range for rank 0 (x [] f32 cpu)");
}

TEST_CASE("amp tags") {
  for (const char* name : {"sum", "mean", "var", "norm"}) CHECK(find_op(name).tag == AmpTag::deny);
}
