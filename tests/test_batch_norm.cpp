// batch_norm against hand values and plain double loops; the rules of its running statistics.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "core/parallel.h"
#include "ops/ops.h"
#include "tests/error_of.h"

using namespace ht;

namespace {
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Reference {
  std::vector<double> y, dx, dgamma, dbeta, mean, var;  // var: biased
};

// Two passes in double. Without running statistics: training.
Reference naive(const Tensor& x, const Tensor& gamma, const Tensor& beta, const Tensor& dy, double eps,
                const Tensor& running_mean = {}, const Tensor& running_var = {}) {
  const bool training = !running_mean.defined();
  const size_t c = static_cast<size_t>(x.shape().back()), rows = static_cast<size_t>(x.numel()) / c;
  const double n = static_cast<double>(rows);
  const std::vector<double> in = x.to_vector(), g = dy.to_vector();
  Reference r{in, in, std::vector<double>(c), std::vector<double>(c), std::vector<double>(c), std::vector<double>(c)};
  for (size_t k = 0; k < c; ++k) {
    double mean = 0, var = 0;
    for (size_t i = 0; i < rows; ++i) mean += in[i * c + k] / n;
    for (size_t i = 0; i < rows; ++i) var += (in[i * c + k] - mean) * (in[i * c + k] - mean) / n;
    r.mean[k] = mean, r.var[k] = var;
    if (!training) mean = running_mean.at(static_cast<int64_t>(k)), var = running_var.at(static_cast<int64_t>(k));
    const double invstd = 1 / std::sqrt(var + eps), ga = gamma.at(static_cast<int64_t>(k));
    for (size_t i = k; i < rows * c; i += c) {
      const double xhat = (in[i] - mean) * invstd;
      r.y[i] = ga * xhat + beta.at(static_cast<int64_t>(k));
      r.dgamma[k] += g[i] * xhat;
      r.dbeta[k] += g[i];
    }
    for (size_t i = k; i < rows * c; i += c) {
      const double xhat = (in[i] - mean) * invstd;
      r.dx[i] = ga * invstd * (training ? g[i] - r.dbeta[k] / n - xhat * r.dgamma[k] / n : g[i]);
    }
  }
  return r;
}

// Largest difference relative to the largest expected magnitude.
double error(const Tensor& got, const std::vector<double>& expected) {
  const std::vector<double> v = got.to_vector();
  REQUIRE(v.size() == expected.size());
  double worst = 0, scale = 1e-30;
  for (size_t i = 0; i < v.size(); ++i) {
    const double difference = std::abs(v[i] - expected[i]);
    if (!(difference <= worst)) worst = difference;  // a NaN shows
    scale = std::max(scale, std::abs(expected[i]));
  }
  return worst / scale;
}

}  // namespace

TEST_CASE("batch_norm: hand values") {
  // Channel 0: mean 2, variance 1; channel 1: mean 10, variance 16.
  const Var x(Tensor::from({1, 6, 3, 14}, {2, 2}), true);
  const Var gamma(Tensor::from({2, 1}, {2}), true), beta(Tensor::from({0.5, -1}, {2}), true);
  const Tensor mean = Tensor::zeros({2}), var = Tensor::full({2}, 1);
  const Var y = batch_norm(x, gamma, beta, {mean, var}, {.eps = 0});
  CHECK(y.value().to_vector() == std::vector<double>{-1.5, -2, 2.5, 0});
  // running = 0.9 * before + 0.1 * batch, with the variance over n - 1: 2 and 32.
  CHECK(mean.at(0) == doctest::Approx(0.2));
  CHECK(mean.at(1) == doctest::Approx(1.0));
  CHECK(var.at(0) == doctest::Approx(1.1));
  CHECK(var.at(1) == doctest::Approx(4.1));
  CHECK(mean.version() > 1);  // it counts the writes of the update too
  y.backward(Tensor::from({1, 2, 3, 4}, {2, 2}));
  CHECK(gamma.grad().to_vector() == std::vector<double>{2, 2});
  CHECK(beta.grad().to_vector() == std::vector<double>{4, 6});
  // Two values: xhat is always (-1, 1), whatever x, so nothing is left for dx.
  CHECK(x.grad().to_vector() == std::vector<double>{0, 0, 0, 0});

  // Evaluation: constants, so dx = gamma invstd dy.
  const Tensor m = Tensor::from({1, 2}, {2}), v = Tensor::from({4, 0.25}, {2});
  x.zero_grad(), gamma.zero_grad();
  const Var z = batch_norm(x, gamma, beta, {m, v}, {.training = false, .eps = 0});
  CHECK(z.value().to_vector() == std::vector<double>{0.5, 7, 2.5, 23});
  z.backward(Tensor::from({1, 2, 3, 4}, {2, 2}));
  CHECK(x.grad().to_vector() == std::vector<double>{1, 4, 3, 8});
  CHECK(gamma.grad().to_vector() == std::vector<double>{3, 2 * 8 + 4 * 24});
  CHECK(m.to_vector() == std::vector<double>{1, 2});
  CHECK(v.to_vector() == std::vector<double>{4, 0.25});
}

TEST_CASE("batch_norm against plain loops: shapes, types, training and evaluation") {
  const double unit[] = {0x1p-52, 0x1p-23, 0x1p-10, 0x1p-7};  // f64 f32 f16 bf16
  uint64_t stream = 0;
  for (const Shape& shape : {Shape{6, 3}, Shape{2, 5}, Shape{1, 3, 3, 2}, Shape{2, 7, 5, 33}, Shape{3, 300},
                             Shape{4, 16, 16, 64}, Shape{1031, 7}, Shape{33, 4097}, Shape{3, 5, 4}}) {
    ++stream;
    for (DType t : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      const DType stats = t == DType::f64 ? DType::f64 : DType::f32;
      const Shape c{shape.back()};
      const Tensor x0 = Tensor::normal(shape, {5, stream}, 0.5, 2, t);
      const Var gamma(Tensor::uniform(c, {6, stream}, 0.5, 1.5, stats), true);
      const Var beta(Tensor::uniform(c, {7, stream}, -1, 1, stats), true);
      const Tensor dy = Tensor::uniform(shape, {8, stream}, -1, 1, t);
      const double u = unit[static_cast<int>(t)];
      for (bool training : {true, false}) {
        // Two rows make dx cancel nearly to nothing: a wide eps keeps the comparison meaningful.
        const double eps = shape[0] == 2 && shape.rank() == 2 ? 0.5 : 1e-5;
        const Tensor mean = Tensor::uniform(c, {9, stream}, -1, 1, stats);
        const Tensor var = Tensor::uniform(c, {10, stream}, 0.5, 2, stats);
        const Reference r = training ? naive(x0, gamma.value(), beta.value(), dy, eps)
                                     : naive(x0, gamma.value(), beta.value(), dy, eps, mean, var);
        const Tensor mean_before = mean.clone(), var_before = var.clone();
        const Var x(x0, true);
        gamma.zero_grad(), beta.zero_grad();
        const Var y = batch_norm(x, gamma, beta, {mean, var}, {.training = training, .eps = eps});
        y.backward(dy);
        CHECK(y.dtype() == t);
        CHECK(x.grad().dtype() == t);
        CHECK(gamma.grad().dtype() == stats);
        CHECK(error(y.value(), r.y) <= (t == DType::f64 ? 1e-14 : u + 1e-6));
        CHECK(error(x.grad(), r.dx) <= (t == DType::f64 ? 1e-13 : u + 1e-5));
        CHECK(error(gamma.grad(), r.dgamma) <= (t == DType::f64 ? 1e-13 : 3e-6));
        CHECK(error(beta.grad(), r.dbeta) <= (t == DType::f64 ? 1e-13 : 3e-6));
        std::vector<double> new_mean = mean_before.to_vector(), new_var = var_before.to_vector();
        if (training) {
          const double n = static_cast<double>(x0.numel() / shape.back());
          for (size_t k = 0; k < new_mean.size(); ++k) {
            new_mean[k] = 0.9 * new_mean[k] + 0.1 * r.mean[k];
            new_var[k] = 0.9 * new_var[k] + 0.1 * r.var[k] * n / (n - 1);
          }
        }
        CHECK(error(mean, new_mean) <= (training ? (t == DType::f64 ? 1e-14 : 1e-6) : 0));
        CHECK(error(var, new_var) <= (training ? (t == DType::f64 ? 1e-14 : 1e-6) : 0));
      }
    }
  }
}

TEST_CASE("batch_norm: a mean far larger than the spread loses nothing") {
  for (double offset : {1e3, -1e3, 1e4, 1e6}) {
    const Shape shape{4, 32, 32, 3};
    const Tensor x = Tensor::normal(shape, {11, 0}, offset, 1, DType::f32);  // f32 stores it to 0.03 at 1e6
    const Tensor one = Tensor::full({3}, 1), zero = Tensor::zeros({3});
    const Reference r = naive(x, one, zero, x, 1e-5);
    const Tensor mean = Tensor::zeros({3}), var = Tensor::zeros({3});
    const Var y = batch_norm(x, one, zero, {mean, var}, {.momentum = 1});
    CHECK(error(mean, r.mean) < 1e-7);
    for (int64_t k = 0; k < 3; ++k)
      CHECK(var.at(k) == doctest::Approx(r.var[static_cast<size_t>(k)] * 4096 / 4095).epsilon(1e-5));
    CHECK(error(y.value(), r.y) < std::abs(offset) * 0x1p-23);  // the mean itself is rounded to FP32
  }
  // An outlier as a block's first row, from which the deviations are taken.
  const Tensor x = Tensor::normal({2048, 2}, {12, 0}, 0, 1, DType::f32);
  x.data<float>()[0] = 1e4f;
  const Tensor one = Tensor::full({2}, 1), zero = Tensor::zeros({2}), mean = Tensor::zeros({2}),
               var = Tensor::zeros({2});
  const Reference r = naive(x, one, zero, x, 1e-5);
  batch_norm(x, one, zero, {mean, var}, {.momentum = 1});
  CHECK(var.at(0) == doctest::Approx(r.var[0] * 2048 / 2047).epsilon(1e-4));
  CHECK(mean.at(0) == doctest::Approx(r.mean[0]).epsilon(1e-5));
  // A constant channel: variance exactly 0, y = beta.
  const Var constant = batch_norm(Tensor::full({1000, 2}, 0.1), one, Tensor::full({2}, 3), {mean, var});
  CHECK(error(constant.value(), std::vector<double>(2000, 3.0)) < 1e-5);
}

TEST_CASE("batch_norm: running statistics stay when the batch is not finite (AMP.md 13)") {
  for (DType t : {DType::f32, DType::f16, DType::bf16}) {
    for (double bad : {kNan, kInf, -kInf}) {
      for (int64_t at : {0, 7, 599}) {
        std::vector<double> values(600, 1.0);
        for (size_t i = 0; i < values.size(); i += 2) values[i] = 2;
        values[static_cast<size_t>(at)] = bad;
        const Tensor mean = Tensor::from({1.1, 2.2, 3.3}, {3}), var = Tensor::from({0.1, 0.2, 0.3}, {3});
        const std::vector<double> mean_before = mean.to_vector(), var_before = var.to_vector();
        const uint64_t version = mean.version();
        const Var y =
            batch_norm(Tensor::from(values, {200, 3}, t), Tensor::full({3}, 1), Tensor::zeros({3}), {mean, var});
        CHECK(mean.to_vector() == mean_before);
        CHECK(var.to_vector() == var_before);
        CHECK(mean.version() == version);
        CHECK(std::isnan(y.value().at(at)));  // the overflow itself is not hidden
      }
    }
  }
  // Finite values whose variance overflows FP32.
  const Tensor mean = Tensor::zeros({1}), var = Tensor::full({1}, 1);
  batch_norm(Tensor::from({-3e38, 3e38}, {2, 1}), Tensor::full({1}, 1), Tensor::zeros({1}), {mean, var});
  CHECK(mean.item() == 0);
  CHECK(var.item() == 1);
}

TEST_CASE("batch_norm: statistics are FP32 under half data (AMP.md 14)") {
  // 12 of 125 values are 1 + 5/1024, the others 1 + 4/1024: the mean is 1.004 to the bit of its definition.
  std::vector<double> values(125, 1 + 4.0 / 1024);
  for (size_t i = 0; i < 12; ++i) values[i * 10] = 1 + 5.0 / 1024;
  const Tensor x = Tensor::from(values, {125, 1}, DType::f16);
  const Tensor mean = Tensor::full({1}, 1), var = Tensor::full({1}, 1);
  for (int step = 0; step < 200; ++step)
    batch_norm(x, Tensor::full({1}, 1), Tensor::zeros({1}), {mean, var}, {.momentum = 0.1});
  CHECK(mean.item() == doctest::Approx(1.0040).epsilon(1e-6));
  // 300^2 is infinite in half: the variance of +-300 is not.
  const Tensor wide = Tensor::from({300, -300, 300, -300}, {4, 1}, DType::f16);
  batch_norm(wide, Tensor::full({1}, 1), Tensor::zeros({1}), {mean, var}, {.momentum = 1});
  CHECK(var.item() == 120000);
}

TEST_CASE("batch_norm: the same bits for every thread count") {
  const int before = num_threads();
  std::vector<double> results[2];
  for (int k = 0; k < 2; ++k) {
    set_num_threads(k ? 5 : 1);
    const Var x(Tensor::normal({8, 15, 16, 70}, {13, 0}), true);
    const Var gamma(Tensor::full({70}, 1.5), true), beta(Tensor::zeros({70}), true);
    const Tensor mean = Tensor::zeros({70}), var = Tensor::full({70}, 1);
    const Var y = batch_norm(x, gamma, beta, {mean, var});
    y.backward(Tensor::normal(y.shape(), {14, 0}));
    for (const Tensor& t : {y.value(), x.grad(), gamma.grad(), beta.grad(), mean, var}) {
      const std::vector<double> v = t.to_vector();
      results[k].insert(results[k].end(), v.begin(), v.end());
    }
  }
  set_num_threads(before);
  CHECK(results[0] == results[1]);
}

TEST_CASE("batch_norm: only the gradients that are wanted") {
  const Tensor x0 = Tensor::normal({20, 3}, {15, 0}), dy = Tensor::normal({20, 3}, {16, 0});
  for (bool training : {true, false}) {
    std::vector<double> all[3];
    for (int wanted = -1; wanted < 3; ++wanted) {
      const Var in[3] = {Var(x0, wanted < 0 || wanted == 0), Var(Tensor::full({3}, 2), wanted < 0 || wanted == 1),
                         Var(Tensor::full({3}, 1), wanted < 0 || wanted == 2)};
      batch_norm(in[0], in[1], in[2], {Tensor::zeros({3}), Tensor::full({3}, 1)}, {.training = training}).backward(dy);
      for (int k = 0; k < 3; ++k) {
        if (wanted < 0) all[k] = in[k].grad().to_vector();
        if (wanted == k) CHECK(in[k].grad().to_vector() == all[k]);
        if (wanted >= 0 && wanted != k) CHECK(!in[k].grad().defined());
      }
    }
  }
}

TEST_CASE("batch_norm: empty batch, batch 1, undefined running statistics") {
  const Var x(Tensor::zeros({0, 4, 4, 3}), true), gamma(Tensor::full({3}, 1), true), beta(Tensor::zeros({3}), true);
  const Tensor mean = Tensor::full({3}, 5), var = Tensor::full({3}, 7);
  for (bool training : {true, false}) {
    gamma.zero_grad(), beta.zero_grad();
    const Var y = batch_norm(x, gamma, beta, {mean, var}, {.training = training});
    CHECK(y.shape() == x.shape());
    y.backward(Tensor::zeros(y.shape()));
    CHECK(gamma.grad().to_vector() == std::vector<double>(3, 0.0));
    CHECK(beta.grad().to_vector() == std::vector<double>(3, 0.0));
  }
  CHECK(mean.to_vector() == std::vector<double>(3, 5.0));
  CHECK(var.to_vector() == std::vector<double>(3, 7.0));
  CHECK(batch_norm(Tensor::zeros({4, 0}), Tensor::zeros({0}), Tensor::zeros({0}), {}).shape() == Shape{4, 0});
  // One image of many pixels is a batch; without running tensors training works.
  CHECK(batch_norm(Tensor::from({1, 3}, {1, 1, 2, 1}), Tensor::full({1}, 1), Tensor::zeros({1}), {}, {.eps = 0})
            .value()
            .to_vector() == std::vector<double>{-1, 1});
  // One value in evaluation.
  CHECK(batch_norm(Tensor::full({1, 3}, 5), gamma, beta, {mean, var}, {.training = false}).value().to_vector() ==
        std::vector<double>(3, 0.0));
}

TEST_CASE("batch_norm: clear errors, nothing changed") {
  const Tensor x = Tensor::zeros({4, 3}), g = Tensor::full({3}, 1), b = Tensor::zeros({3}), m = Tensor::zeros({3}),
               v = Tensor::full({3}, 1);
  const uint64_t version = m.version();
  CHECK(error_of([&] {
          batch_norm(Tensor::zeros({1, 3}), g, b, {m, v});
        }) ==
        "batch_norm: expected more than 1 value per channel in training; use a larger batch or evaluation "
        "(x [1,3] f32 cpu)");
  CHECK(error_of([&] {
          batch_norm(x, Tensor::zeros({4}), b, {m, v});
        }) == "batch_norm: gamma must be [3] f32 cpu (gamma [4] f32 cpu, x [4,3] f32 cpu)");
  CHECK(error_of([&] {
          batch_norm(x.to(DType::f16), g.to(DType::f16), b, {m, v});
        }) == "batch_norm: gamma must be [3] f32 cpu (gamma [3] f16 cpu, x [4,3] f16 cpu)");
  CHECK(error_of([&] {
          batch_norm(x.to(DType::f64), g.to(DType::f64), b, {m, v});
        }) == "batch_norm: beta must be [3] f64 cpu (beta [3] f32 cpu, x [4,3] f64 cpu)");
  CHECK(error_of([&] {
          batch_norm(x, g, b, {m, v.to(DType::f64)});
        }) == "batch_norm: running_var must be [3] f32 cpu (running_var [3] f64 cpu, x [4,3] f32 cpu)");
  CHECK(error_of([&] {
          batch_norm(x, g, b, {m, {}});
        }) == "batch_norm: give both running_mean and running_var or neither (x [4,3] f32 cpu)");
  CHECK(error_of([&] { batch_norm(x, g, b, {}, {.training = false}); }) ==
        "batch_norm: evaluation needs running_mean and running_var (x [4,3] f32 cpu)");
  CHECK(error_of([&] {
          batch_norm(Tensor::zeros({3}), g, b, {m, v});
        }) == "batch_norm: x must be [n, ..., c], not of rank 1 (x [3] f32 cpu)");
  CHECK(error_of([&] {
          batch_norm(x.to(DType::i32), g, b, {m, v});
        }) == "batch_norm: x must be floating (x [4,3] i32 cpu)");
  CHECK(error_of([&] { batch_norm(x, g, b, {m, v}, {.eps = -1}); }).find("eps -1 must be finite") != std::string::npos);
  CHECK(error_of([&] {
          batch_norm(x, g, b, {m, v}, {.momentum = kNan});
        }).find("momentum nan must be in [0, 1]") != std::string::npos);
  CHECK(m.version() == version);
}
