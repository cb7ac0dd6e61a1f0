// matmul and linear against naive loops in double.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "core/parallel.h"
#include "ops/ops.h"
#include "tests/error_of.h"

using namespace ht;

namespace {
Tensor draw(const Shape& shape, uint64_t stream, DType dtype) {
  return Tensor::normal(shape, {11, stream}, 0, 1, dtype);
}

// y [b, m, n] = a [b, m, k] b [b or 1, k, n], flat.
std::vector<double> naive(const std::vector<double>& a, const std::vector<double>& b, int64_t batch, int64_t m,
                          int64_t n, int64_t k, bool shared) {
  std::vector<double> y(static_cast<size_t>(batch * m * n));
  for (int64_t i = 0; i < batch; ++i)
    for (int64_t r = 0; r < m; ++r)
      for (int64_t c = 0; c < n; ++c)
        for (int64_t j = 0; j < k; ++j)
          y[static_cast<size_t>((i * m + r) * n + c)] +=
              a[static_cast<size_t>((i * m + r) * k + j)] * b[static_cast<size_t>(((shared ? 0 : i) * k + j) * n + c)];
  return y;
}

std::vector<double> transpose_of(const std::vector<double>& a, int64_t rows, int64_t cols) {
  std::vector<double> t;
  for (int64_t c = 0; c < cols; ++c)
    for (int64_t r = 0; r < rows; ++r) t.push_back(a[static_cast<size_t>(r * cols + c)]);
  return t;
}

double relative_l2(const std::vector<double>& y, const std::vector<double>& expected) {
  REQUIRE(y.size() == expected.size());
  double error = 0, size = 0;
  for (size_t i = 0; i < y.size(); ++i) error += std::pow(y[i] - expected[i], 2), size += std::pow(expected[i], 2);
  return size > 0 ? std::sqrt(error / size) : std::sqrt(error);
}

// One rounding of the result beside exact inputs: half an ulp, and room for FP32 sums.
double bound(DType t) {
  switch (t) {
    case DType::f64:
      return 1e-14;
    case DType::f32:
      return 1e-6;
    case DType::f16:
      return 5e-4;
    default:
      return 4e-3;
  }
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

}  // namespace

TEST_CASE("matmul: a hand-computed product and its gradients") {
  const Var a(Tensor::from({1, 2, 3, 4, 5, 6}, {2, 3}), true), b(Tensor::from({1, 0, 2, 1, 0, 3}, {3, 2}), true);
  const Var y = matmul(a, b);
  CHECK(y.value().to_vector() == std::vector<double>{5, 11, 14, 23});
  y.backward(Tensor::from({1, 10, 100, 1000}, {2, 2}));
  CHECK(a.grad().to_vector() == std::vector<double>{1, 12, 30, 100, 1200, 3000});
  CHECK(b.grad().to_vector() == std::vector<double>{401, 4010, 502, 5020, 603, 6030});
}

TEST_CASE("matmul: against a naive triple loop, every dtype, odd sizes") {
  const int64_t sizes[][3] = {{1, 1, 1},   {2, 3, 4},    {7, 1, 5},      {1, 9, 13},     {17, 33, 65},
                              {3, 5, 700}, {300, 2, 31}, {65, 257, 129}, {270, 300, 33}, {2, 520, 1100}};
  for (const auto [m, n, k] : sizes) {
    for (DType t : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      INFO("m ", m, " n ", n, " k ", k, " ", name_of(t));
      const Var a(draw({m, k}, 1, t), true), b(draw({k, n}, 2, t), true);
      const Tensor dy = draw({m, n}, 3, t);
      const Var y = matmul(a, b);
      y.backward(dy);
      const std::vector<double> va = a.value().to_vector(), vb = b.value().to_vector();
      const std::vector<double> ta = transpose_of(va, m, k), tb = transpose_of(vb, k, n), vdy = dy.to_vector();
      CHECK(relative_l2(y.value().to_vector(), naive(va, vb, 1, m, n, k, true)) < bound(t));
      CHECK(relative_l2(a.grad().to_vector(), naive(vdy, tb, 1, m, k, n, true)) < bound(t));
      CHECK(relative_l2(b.grad().to_vector(), naive(ta, vdy, 1, k, n, m, true)) < bound(t));
    }
  }
}

TEST_CASE("matmul: batches, with and without b's own") {
  for (DType t : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    INFO(name_of(t));
    const Tensor a = draw({2, 3, 5, 7}, 1, t), b = draw({2, 3, 7, 4}, 2, t), shared = draw({7, 4}, 3, t);
    const Var y = matmul(a, b), z = matmul(a, shared);
    CHECK(y.shape() == Shape{2, 3, 5, 4});
    CHECK(relative_l2(y.value().to_vector(), naive(a.to_vector(), b.to_vector(), 6, 5, 4, 7, false)) < bound(t));
    CHECK(relative_l2(z.value().to_vector(), naive(a.to_vector(), shared.to_vector(), 6, 5, 4, 7, true)) < bound(t));
  }
}

TEST_CASE("matmul: 16-bit inputs accumulate in FP32") {
  for (DType t : {DType::f16, DType::bf16}) {
    const Tensor row = Tensor::full({1, 4096}, 1, t), column = Tensor::full({4096, 1}, 1, t);
    CHECK(matmul(row, column).item() == 4096);  // a half sum stops at 2048, a bfloat16 one at 256
    const Var one(Tensor::full({1, 1}, 1, t)), many(Tensor::full({1, 4096}, 1, t), true);
    const Var bias(Tensor::full({1}, 0, t), true);
    CHECK(linear(Tensor::full({1, 4096}, 1, t), many, bias).item() == 4096);
    linear(Tensor::full({4096, 1}, 1, t), one, bias).backward(Tensor::full({4096, 1}, 1, t));
    CHECK(bias.grad().item() == 4096);
  }
}

TEST_CASE("matmul: sums that overflow half give infinity, not an error") {
  const Tensor row = Tensor::full({1, 4}, 200, DType::f16), column = Tensor::full({4, 1}, 200, DType::f16);
  CHECK(std::isinf(matmul(row, column).item()));
}

TEST_CASE("matmul: empty sizes") {
  for (DType t : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    CHECK(matmul(Tensor::empty({0, 3}, t), draw({3, 2}, 1, t)).shape() == Shape{0, 2});
    CHECK(matmul(Tensor::empty({2, 0}, t), Tensor::empty({0, 2}, t)).value().to_vector() ==
          std::vector<double>{0, 0, 0, 0});
    CHECK(matmul(Tensor::empty({0, 2, 3}, t), Tensor::empty({0, 3, 4}, t)).shape() == Shape{0, 2, 4});
    const Var w(draw({2, 3}, 1, t), true), bias(draw({2}, 2, t), true);
    linear(Tensor::empty({0, 3}, t), w, bias).backward(Tensor::empty({0, 2}, t));
    CHECK(w.grad().to_vector() == std::vector<double>(6, 0));
    CHECK(bias.grad().to_vector() == std::vector<double>(2, 0));
    CHECK(linear(Tensor::empty({2, 0}, t), Tensor::empty({2, 0}, t), bias).value().rows(1, 2).to_vector() ==
          bias.value().to_vector());
  }
}

TEST_CASE("linear: against a naive loop, with the bias, every dtype") {
  const int64_t sizes[][3] = {{1, 1, 1}, {2, 5, 3}, {7, 10, 33}, {33, 260, 515}, {130, 1, 64}};
  for (const auto [rows, out, in] : sizes) {
    for (DType t : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      INFO("rows ", rows, " out ", out, " in ", in, " ", name_of(t));
      const Var x(draw({rows, in}, 1, t), true), w(draw({out, in}, 2, t), true), bias(draw({out}, 3, t), true);
      const Tensor dy = draw({rows, out}, 4, t);
      const Var y = linear(x, w, bias);
      y.backward(dy);
      const std::vector<double> vx = x.value().to_vector(), vw = w.value().to_vector(), vdy = dy.to_vector();
      std::vector<double> expected = naive(vx, transpose_of(vw, out, in), 1, rows, out, in, true);
      for (size_t i = 0; i < expected.size(); ++i)
        expected[i] += bias.value().to_vector()[i % static_cast<size_t>(out)];
      CHECK(relative_l2(y.value().to_vector(), expected) < bound(t));
      CHECK(relative_l2(x.grad().to_vector(), naive(vdy, vw, 1, rows, in, out, true)) < bound(t));
      CHECK(relative_l2(w.grad().to_vector(), naive(transpose_of(vdy, rows, out), vx, 1, out, in, rows, true)) <
            bound(t));
      const std::vector<double> ones(static_cast<size_t>(rows), 1);
      CHECK(relative_l2(bias.grad().to_vector(), naive(ones, vdy, 1, 1, out, rows, true)) < bound(t));
    }
  }
}

TEST_CASE("linear: any rank of x, no bias") {
  const Var w(Tensor::from({1, 2, 3, 4, 5, 6}, {2, 3}));
  CHECK(linear(Tensor::from({1, 1, 1}, {3}), w).value().to_vector() == std::vector<double>{6, 15});
  CHECK(linear(Tensor::full({2, 4, 3}, 1), w).shape() == Shape{2, 4, 2});
}

TEST_CASE("matmul and linear: one and two threads give the same bits") {
  const int before = num_threads();
  for (DType t : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    INFO(name_of(t));
    const Tensor x = draw({83, 301}, 1, t), w = draw({270, 301}, 2, t), bias = draw({270}, 3, t);
    std::vector<Tensor> results[2];
    for (int threads = 1; threads <= 2; ++threads) {
      set_num_threads(threads);
      const Var vx(x, true), vw(w, true), vb(bias, true);
      const Var y = linear(vx, vw, vb);
      y.backward(y.value());
      results[threads - 1] = {y.value(), vx.grad(), vw.grad(), vb.grad(), matmul(w, draw({301, 83}, 4, t)).value()};
    }
    for (size_t i = 0; i < 5; ++i) CHECK(same_bits(results[0][i], results[1][i]));
  }
  set_num_threads(before);
}

TEST_CASE("matmul and linear: error texts") {
  const auto matmul_error = [](const Tensor& a, const Tensor& b) { return error_of([&] { matmul(a, b); }); };
  CHECK(matmul_error(Tensor::zeros({2, 3}), Tensor::zeros({4, 5})) ==
        "matmul: a has 3 columns but b has 4 rows (a [2,3] f32 cpu, b [4,5] f32 cpu)");
  CHECK(matmul_error(Tensor::zeros({3}), Tensor::zeros({3, 5})) ==
        "matmul: a has rank 1 but needs at least 2; reshape() it (a [3] f32 cpu, b [3,5] f32 cpu)");
  CHECK(matmul_error(Tensor::zeros({2, 3}), Tensor::zeros({3})) ==
        "matmul: b has rank 1 but needs at least 2; reshape() it (a [2,3] f32 cpu, b [3] f32 cpu)");
  CHECK(matmul_error(Tensor::zeros({2, 3}), Tensor::zeros({3, 2}, DType::f16)) ==
        "matmul: a is f32 but b is f16; cast() one of them (a [2,3] f32 cpu, b [3,2] f16 cpu)");
  CHECK(matmul_error(Tensor::zeros({2, 3}, DType::i32), Tensor::zeros({3, 2}, DType::i32)) ==
        "matmul: the inputs must be floating; cast() them first (a [2,3] i32 cpu, b [3,2] i32 cpu)");
  CHECK(matmul_error(Tensor::zeros({4, 2, 3}), Tensor::zeros({5, 3, 2})) ==
        "matmul: the leading axes differ; they must be equal, or b must have none (a [4,2,3] f32 cpu, b [5,3,2] f32 "
        "cpu)");
  CHECK(
      matmul_error(Tensor::zeros({2, 3}), Tensor::zeros({5, 3, 2})) ==
      "matmul: the leading axes differ; they must be equal, or b must have none (a [2,3] f32 cpu, b [5,3,2] f32 cpu)");

  const auto linear_error = [](const Tensor& x, const Tensor& w, const Var& bias) {
    return error_of([&] { linear(x, w, bias); });
  };
  CHECK(linear_error(Tensor::zeros({2, 3}), Tensor::zeros({5, 4}), {}) ==
        "linear: x has 3 columns but weight takes 4 (x [2,3] f32 cpu, weight [5,4] f32 cpu)");
  CHECK(linear_error(Tensor::zeros({2, 3}), Tensor::zeros({5, 3, 1}), {}) ==
        "linear: weight has rank 3 but needs 2, [out, in] (x [2,3] f32 cpu, weight [5,3,1] f32 cpu)");
  CHECK(linear_error(Tensor::zeros({}), Tensor::zeros({5, 3}), {}) ==
        "linear: x has rank 0 but needs at least 1 (x [] f32 cpu, weight [5,3] f32 cpu)");
  CHECK(linear_error(Tensor::zeros({2, 3}), Tensor::zeros({5, 3}), Tensor::zeros({4})) ==
        "linear: bias must have shape [5] (x [2,3] f32 cpu, weight [5,3] f32 cpu, bias [4] f32 cpu)");
  CHECK(linear_error(Tensor::zeros({2, 3}), Tensor::zeros({5, 3}), Tensor::zeros({5}, DType::f64)) ==
        "linear: x is f32 but bias is f64; cast() one of them (x [2,3] f32 cpu, weight [5,3] f32 cpu, bias [5] f64 "
        "cpu)");
  CHECK(linear_error(Tensor::zeros({2, 3}, DType::bf16), Tensor::zeros({5, 3}), {}) ==
        "linear: x is bf16 but weight is f32; cast() one of them (x [2,3] bf16 cpu, weight [5,3] f32 cpu)");
}
