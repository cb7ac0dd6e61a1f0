// reshape, flatten, transpose, slice, cat and dropout.
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include "core/parallel.h"
#include "ops/ops.h"
#include "ops/registry.h"
#include "tests/error_of.h"

using namespace ht;

namespace {
using Values = std::vector<double>;

// 0, 1, 2, ...
Tensor counting(const Shape& shape, DType dtype = DType::f32) {
  Values v(static_cast<size_t>(shape.numel()));
  std::iota(v.begin(), v.end(), 0.0);
  return Tensor::from(v, shape, dtype);
}
Var leaf(const Tensor& t) { return Var(t, true); }
}  // namespace

TEST_CASE("reshape and flatten are views, forward and backward") {
  const Var x = leaf(counting({2, 3, 4}));
  const Var y = reshape(x, {4, -1});
  CHECK(y.shape() == Shape{4, 6});
  CHECK(y.value().same_storage(x.value()));
  CHECK(y.value().to_vector() == x.value().to_vector());
  const Var z = flatten(y, 0);
  CHECK(z.shape() == Shape{24});
  CHECK(z.value().same_storage(x.value()));
  z.backward(counting({24}));
  CHECK(x.grad().shape() == Shape{2, 3, 4});
  CHECK(x.grad().to_vector() == counting({24}).to_vector());

  CHECK(flatten(x).shape() == Shape{2, 12});
  CHECK(flatten(x, -1).shape() == Shape{2, 3, 4});
  CHECK(flatten(Var(Tensor::zeros({})), 0).shape() == Shape{1});
  CHECK(flatten(Var(Tensor::zeros({0, 2, 3}))).shape() == Shape{0, 6});
  CHECK(reshape(Var(Tensor::zeros({0, 3})), {-1, 2}).shape() == Shape{0, 2});
  CHECK(reshape(Var(Tensor::zeros({1, 1})), {}).shape() == Shape{});
  CHECK(reshape(Var(counting({6}, DType::i64)), {2, 3}).dtype() == DType::i64);
}

TEST_CASE("a view's gradient does not alias another's") {
  const Var x = leaf(counting({4}));
  const Tensor seed = Tensor::full({2, 2}, 1);
  reshape(x, {2, 2}).backward(seed);
  reshape(x, {2, 2}).backward(seed);
  CHECK(x.grad().to_vector() == Values{2, 2, 2, 2});
  CHECK(seed.to_vector() == Values{1, 1, 1, 1});
}

TEST_CASE("transpose moves every element, in every dtype and over tile borders") {
  const Shape shapes[] = {{3, 5}, {67, 41}, {2, 3, 4}, {2, 33, 1, 70}, {3, 2, 35, 4, 2}};
  for (const Shape& s : shapes) {
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::u8, DType::i64}) {
      const Tensor x = counting(s, DType::i32).to(dtype);
      for (int a = 0; a < s.rank(); ++a) {
        for (int b = 0; b < s.rank(); ++b) {
          const Tensor y = transpose(Var(x), a, b - s.rank()).value();
          REQUIRE(y.shape() == s.with(a, s[b]).with(b, s[a]));
          REQUIRE(!y.same_storage(x));
          const Values from = x.to_vector(), to = y.to_vector();
          for (int64_t i = 0; i < x.numel(); ++i) {
            std::vector<int64_t> index(static_cast<size_t>(s.rank()));
            for (int64_t d = s.rank() - 1, rest = i; d >= 0; --d) {
              index[static_cast<size_t>(d)] = rest % s[static_cast<int>(d)];
              rest /= s[static_cast<int>(d)];
            }
            std::swap(index[static_cast<size_t>(a)], index[static_cast<size_t>(b)]);
            int64_t j = 0;
            for (int d = 0; d < s.rank(); ++d) j = j * y.dim(d) + index[static_cast<size_t>(d)];
            REQUIRE(to[static_cast<size_t>(j)] == from[static_cast<size_t>(i)]);
          }
        }
      }
    }
  }
  const Var x = leaf(counting({2, 3}));
  transpose(x, 0, 1).backward(counting({3, 2}));
  CHECK(x.grad().to_vector() == Values{0, 2, 4, 1, 3, 5});
}

TEST_CASE("slice") {
  const Var x = leaf(counting({2, 3, 2}));
  const Var y = slice(x, 1, 1, 3);
  CHECK(y.shape() == Shape{2, 2, 2});
  CHECK(y.value().to_vector() == Values{2, 3, 4, 5, 8, 9, 10, 11});
  CHECK(!slice(x, 0, 0, 1).value().same_storage(x.value()));
  y.backward(Tensor::full({2, 2, 2}, 7));
  CHECK(x.grad().to_vector() == Values{0, 0, 7, 7, 7, 7, 0, 0, 7, 7, 7, 7});
  CHECK(slice(x, -1, 1, 2).value().to_vector() == Values{1, 3, 5, 7, 9, 11});
  CHECK(slice(x, 0, 1, 1).shape() == Shape{0, 3, 2});
  CHECK(slice(Var(counting({4}, DType::i64)), 0, 1, 3).value().to_vector() == Values{1, 2});
}

TEST_CASE("cat") {
  const Var a = leaf(counting({2, 1})), b = leaf(Tensor::from({10, 11, 12, 13}, {2, 2})), c(Tensor::full({2, 1}, -1));
  const Var y = cat({a, b, c}, 1);
  CHECK(y.shape() == Shape{2, 4});
  CHECK(y.value().to_vector() == Values{0, 10, 11, -1, 1, 12, 13, -1});
  y.backward(counting({2, 4}));
  CHECK(a.grad().to_vector() == Values{0, 4});
  CHECK(b.grad().to_vector() == Values{1, 2, 5, 6});
  CHECK(!c.grad().defined());
  CHECK(cat({a, a}).shape() == Shape{4, 1});
  CHECK(cat({a}, -1).value().to_vector() == Values{0, 1});
  a.zero_grad();
  cat({a, a}).backward(counting({4, 1}));  // one Var twice
  CHECK(a.grad().to_vector() == Values{2, 4});
  CHECK(cat({Var(Tensor::zeros({0, 3})), Var(Tensor::zeros({2, 3}))}).shape() == Shape{2, 3});
}

TEST_CASE("errors of the shape ops") {
  const Var x(Tensor::zeros({2, 3}));
  CHECK(error_of([&] { reshape(x, {4}); }) == "reshape: shape [4] has 4 elements but x has 6 (x [2,3] f32 cpu)");
  CHECK(error_of([&] { reshape(x, {-1, -1}); }) == "reshape: more than one size is -1 (x [2,3] f32 cpu)");
  CHECK(error_of([&] {
          reshape(x, {-1, 4});
        }) == "reshape: 6 elements do not divide by the 4 of the known sizes (x [2,3] f32 cpu)");
  CHECK(error_of([&] { reshape(x, {-2, 3}); }) == "reshape: size -2 is negative; one size may be -1 (x [2,3] f32 cpu)");
  CHECK(error_of([&] {
          reshape(Var(Tensor::zeros({0})), {-1, 0});
        }) == "reshape: 0 elements do not divide by the 0 of the known sizes (x [0] f32 cpu)");
  CHECK(error_of([&] { flatten(x, 2); }) == "flatten: start axis 2 is out of range for rank 2 (x [2,3] f32 cpu)");
  CHECK(error_of([&] { transpose(x, 0, 2); }) == "transpose: axis 2 is out of range for rank 2 (x [2,3] f32 cpu)");
  CHECK(error_of([&] { slice(x, 2, 0, 1); }) == "slice: axis 2 is out of range for rank 2 (x [2,3] f32 cpu)");
  CHECK(error_of([&] { slice(x, 1, 2, 4); }) == "slice: [2, 4) does not lie in [0, 3) of axis 1 (x [2,3] f32 cpu)");
  CHECK(error_of([&] { slice(x, 1, 2, 1); }) == "slice: [2, 1) does not lie in [0, 3) of axis 1 (x [2,3] f32 cpu)");
  CHECK(error_of([&] { cat({}); }) == "cat: no inputs; give at least one");
  CHECK(error_of([&] {
          cat({x, Var(Tensor::zeros({2, 4}))});
        }) == "cat: x1 differs from x0 outside axis 0 (x0 [2,3] f32 cpu, x1 [2,4] f32 cpu)");
  CHECK(error_of([&] {
          cat({x, Var(Tensor::zeros({2}))});
        }) == "cat: x1 differs from x0 outside axis 0 (x0 [2,3] f32 cpu, x1 [2] f32 cpu)");
  CHECK(error_of([&] {
          cat({x, Var(Tensor::zeros({2, 3}, DType::f16))});
        }) == "cat: dtypes differ; cast() one to the other's (x0 [2,3] f32 cpu, x1 [2,3] f16 cpu)");
  CHECK(error_of([&] { cat({Var(Tensor::zeros({}))}); }) == "cat: axis 0 is out of range for rank 0 (x0 [] f32 cpu)");
}

TEST_CASE("dropout drops p of the elements and keeps the mean") {
  manual_seed(5);
  const int64_t n = 200001;
  for (const double p : {0.1, 0.5, 0.9}) {
    const Tensor y = dropout(Var(Tensor::full({n}, 2)), p).value();
    int64_t dropped = 0;
    for (int64_t i = 0; i < n; ++i) {
      const float v = y.data<float>()[i];
      dropped += v == 0;
      REQUIRE((v == 0 || v == doctest::Approx(2 / (1 - p))));
    }
    const double sigma = std::sqrt(p * (1 - p) * static_cast<double>(n));
    CHECK(std::abs(static_cast<double>(dropped) - p * static_cast<double>(n)) < 4 * sigma);
  }
}

TEST_CASE("dropout: forward and backward share the mask; the seed fixes it; each call draws anew") {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const Var x = leaf(Tensor::full({37, 3}, 1, dtype));
    manual_seed(9);
    const Var y = dropout(x, 0.4), other = dropout(x, 0.4);
    CHECK(y.value().to_vector() != other.value().to_vector());
    y.backward(Tensor::full({37, 3}, 1, dtype));
    CHECK(x.grad().to_vector() == y.value().to_vector());
    manual_seed(9);
    CHECK(dropout(x, 0.4).value().to_vector() == y.value().to_vector());
    manual_seed(10);
    CHECK(dropout(x, 0.4).value().to_vector() != y.value().to_vector());
  }
  const Var x(Tensor::full({100000}, 1));
  const int before = num_threads();
  manual_seed(1);
  set_num_threads(1);
  const Values one = dropout(x).value().to_vector();
  manual_seed(1);
  set_num_threads(3);
  CHECK(dropout(x).value().to_vector() == one);
  set_num_threads(before);
}

TEST_CASE("dropout at the edges") {
  const Var x(Tensor::from({1, -2, NAN}, {3}));
  const Var eval = dropout(x, 0.5, false);
  CHECK(eval.value().same_storage(x.value()));
  CHECK(dropout(Var(Tensor::full({50}, 3)), 0).value().to_vector() == Values(50, 3));
  CHECK(dropout(x, 1).value().to_vector() == Values{0, 0, 0});
  CHECK(dropout(Var(Tensor::zeros({0, 3}))).shape() == Shape{0, 3});
  CHECK(error_of([&] { dropout(x, 1.5); }) == "dropout: p is 1.5 but must lie in [0, 1] (x [3] f32 cpu)");
  CHECK(error_of([&] { dropout(x, -0.1, false); }) == "dropout: p is -0.1 but must lie in [0, 1] (x [3] f32 cpu)");
  CHECK(error_of([&] { dropout(x, NAN); }) == "dropout: p is nan but must lie in [0, 1] (x [3] f32 cpu)");
  CHECK(error_of([&] { dropout(Var(Tensor::zeros({2}, DType::i64))); }) ==
        "dropout: the input must be floating; cast() it first (x [2] i64 cpu)");
}

TEST_CASE("amp tags") {
  for (const char* name : {"reshape", "flatten", "transpose", "slice", "dropout"})
    CHECK(find_op(name).tag == AmpTag::leave);
  CHECK(find_op("cat").tag == AmpTag::promote);
}
