// Probabilities and losses: hand-computed values, values of PyTorch 1.13 in float64, 16-bit types, edges, error texts.
#include <doctest/doctest.h>

#include <cmath>

#include "ops/ops.h"
#include "ops/registry.h"
#include "tests/error_of.h"

using namespace ht;

namespace {
using Values = std::vector<double>;

Var leaf(const Tensor& t) { return Var(t, true); }
Var f64(std::initializer_list<double> values, const Shape& shape) {
  return leaf(Tensor::from(values, shape, DType::f64));
}
Var labels(std::initializer_list<double> values, DType dtype = DType::i64) {
  return Var(Tensor::from(values, {static_cast<int64_t>(values.size())}, dtype));
}

void check_close(const Tensor& t, const Values& want, double relative = 1e-12) {
  const Values got = t.to_vector();
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(got[i] - want[i]) <= relative * std::abs(want[i]));
  }
}

const DType kFloating[] = {DType::f64, DType::f32, DType::f16, DType::bf16};
// One rounding to the type, with a little room for the arithmetic before it.
double rounding(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 1e-13;
    case DType::f32:
      return 1e-6;
    case DType::f16:
      return 1.0 / 2000;
    default:
      return 1.0 / 250;
  }
}
}  // namespace

TEST_CASE("softmax and log_softmax give PyTorch's values") {
  const Var x = f64({1.5, -0.5, 0.25, 0.0, 2.0, -1.0}, {2, 3});
  check_close(softmax(x).value(), {0.7033139760217739, 0.095183196149175, 0.20150282782905093, 0.11419519938459449,
                                   0.8437947344813395, 0.04201006613406605});
  check_close(softmax(x, 0).value(), {0.8175744761936437, 0.07585818002124356, 0.7772998611746911, 0.18242552380635632,
                                      0.9241418199787566, 0.22270013882530884});
  check_close(log_softmax(x).value(), {-0.3519518638028018, -2.351951863802802, -1.6019518638028019,
                                       -2.1698460195562856, -0.16984601955628567, -3.1698460195562856});
}

TEST_CASE("softmax along any axis is the naive one, in every dtype") {
  for (const Shape& shape : {Shape{5}, Shape{3, 70}, Shape{2, 3, 41}, Shape{4, 1, 3, 2}}) {
    for (const DType dtype : kFloating) {
      const Tensor x = Tensor::uniform(shape, {1, 9}, -4, 4).to(dtype);
      const Values v = x.to_vector();
      for (int axis = 0; axis < shape.rank(); ++axis) {
        const Values y = softmax(Var(x), axis).value().to_vector();
        const Values log_y = log_softmax(Var(x), axis - shape.rank()).value().to_vector();
        const int64_t inner = shape.product(axis + 1, shape.rank()), n = shape[axis];
        for (int64_t i = 0; i < x.numel(); ++i) {
          const int64_t first = i / (n * inner) * n * inner + i % inner;
          double sum = 0;
          for (int64_t j = 0; j < n; ++j) sum += std::exp(v[static_cast<size_t>(first + j * inner)]);
          const double want = std::exp(v[static_cast<size_t>(i)]) / sum;
          REQUIRE(y[static_cast<size_t>(i)] == doctest::Approx(want).epsilon(rounding(dtype)));
          REQUIRE(std::abs(log_y[static_cast<size_t>(i)] - std::log(want)) <= rounding(dtype) * 10);
        }
      }
    }
  }
}

TEST_CASE("softmax neither overflows nor hides what is not finite") {
  const Var big(Tensor::from({1e4, 1e4 - 1, -1e30}, {3}));
  CHECK(softmax(big).value().at(0) == doctest::Approx(1 / (1 + std::exp(-1))));
  CHECK(softmax(big).value().at(2) == 0);
  const Var masked(Tensor::from({-INFINITY, 0, 0}, {3}));
  CHECK(softmax(masked).value().to_vector() == Values{0, 0.5, 0.5});
  CHECK(log_softmax(masked).value().at(0) == -INFINITY);
  for (const auto& bad :
       {std::initializer_list<double>{NAN, 0, 1}, {INFINITY, 0, 1}, {-INFINITY, -INFINITY, -INFINITY}})
    for (int i = 0; i < 3; ++i) {
      CHECK(std::isnan(softmax(Var(Tensor::from(bad, {3}))).value().at(i)));
      CHECK(std::isnan(log_softmax(Var(Tensor::from(bad, {3}))).value().at(i)));
    }
  CHECK(softmax(Var(Tensor::zeros({0, 3}))).shape() == Shape{0, 3});
  CHECK(softmax(Var(Tensor::zeros({3, 0}))).shape() == Shape{3, 0});
  CHECK(softmax(Var(Tensor::zeros({3, 0, 2})), 1).shape() == Shape{3, 0, 2});
}

TEST_CASE("cross_entropy gives PyTorch's values, with and without smoothing") {
  const Var x = f64({1.5, -0.5, 0.25, 0.0, 2.0, -1.0}, {2, 3});
  const auto run = [&](const CrossEntropyOptions& options, double loss, const Values& dx) {
    for (const DType type : {DType::i32, DType::i64}) {
      x.zero_grad();
      const Var y = cross_entropy(x, labels({2, 1}, type), options);
      CHECK(y.value().rank() == 0);
      CHECK(y.item() == doctest::Approx(loss).epsilon(1e-14));
      y.backward();
      check_close(x.grad(), dx);
    }
  };
  run({}, 0.8858989416795437,
      {0.351656988010887, 0.0475915980745875, -0.399248586085475, 0.0570975996922972, -0.0781026327593303,
       0.021005033067033});
  run({0, Reduction::sum}, 1.7717978833590875,
      {0.703313976021774, 0.095183196149175, -0.798497172170949, 0.114195199384594, -0.156205265518661,
       0.042010066134066});
  run({0.1}, 0.9608989416795437,
      {0.33499032134422, 0.0309249314079208, -0.365915252752141, 0.0404309330256306, -0.0447692994259969,
       0.00433836640036636});
  run({0.1, Reduction::sum}, 1.9217978833590874,
      {0.669980642688441, 0.0618498628158417, -0.731830505504282, 0.0808618660512611, -0.0895385988519939,
       0.00867673280073272});
}

TEST_CASE("a nearly certain prediction keeps its small loss and gradient in FP32") {
  const Var x = leaf(Tensor::from({12, 0, 0}, {1, 3}));
  const Var y = cross_entropy(x, labels({0}));
  CHECK(y.item() == doctest::Approx(1.2288349204613322e-05).epsilon(1e-6));
  y.backward();
  check_close(x.grad(), {-1.2288273703142671e-05, 6.144136851565125e-06, 6.144136851565125e-06}, 1e-6);

  const Var batch = leaf(Tensor::zeros({128, 3}));
  for (int i = 0; i < 128; ++i) batch.value().data<float>()[3 * i] = 12;
  cross_entropy(batch, Var(Tensor::zeros({128}, DType::i64))).backward();
  CHECK(batch.grad().at(0) == doctest::Approx(-9.600e-8).epsilon(1e-4));

  const Var far = leaf(Tensor::from({1000, 0, -1000}, {1, 3}));
  const Var large = cross_entropy(far, labels({2}));
  CHECK(large.item() == 2000);
  large.backward();
  CHECK(far.grad().to_vector() == Values{1, 0, -1});
}

TEST_CASE("cross_entropy is nll_loss of log_softmax") {
  for (const DType dtype : kFloating) {
    const Tensor logits = Tensor::uniform({37, 10}, {4, 4}, -3, 3).to(dtype);
    Tensor t = Tensor::empty({37}, DType::i32);
    for (int i = 0; i < 37; ++i) t.data<int32_t>()[i] = i * 7 % 10;
    for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
      const Var a = leaf(logits), b = leaf(logits.to(DType::f64));
      const Var fused = cross_entropy(a, Var(t), {0, reduction});
      const Var parts = nll_loss(log_softmax(b), Var(t), reduction);
      CHECK(fused.dtype() == dtype);
      CHECK(fused.item() == doctest::Approx(parts.item()).epsilon(rounding(dtype)));
      fused.backward();
      parts.backward();
      CHECK(a.grad().dtype() == dtype);
      for (int64_t i = 0; i < logits.numel(); ++i)
        REQUIRE(std::abs(a.grad().at(i) - b.grad().at(i)) <=
                rounding(dtype) * std::abs(b.grad().at(i)) + (dtype == DType::f16 ? 0x1p-25 : 1e-7 * rounding(dtype)));
    }
  }
}

TEST_CASE("a masked class costs nothing; saved logits are guarded") {
  const Var x = leaf(Tensor::from({-INFINITY, 0, 1}, {1, 3}));
  const Var y = cross_entropy(x, labels({1}));
  CHECK(y.item() == doctest::Approx(1.3132616875182228));
  y.backward();
  CHECK(x.grad().at(0) == 0);

  const Var z = leaf(Tensor::zeros({1, 3}));
  const Var loss = cross_entropy(z, labels({1}));
  z.value().fill_(2);
  CHECK(error_of([&] { loss.backward(); }).find("a saved tensor was written after forward") != std::string::npos);
}

TEST_CASE("nll_loss by hand") {
  const Var x = leaf(Tensor::from({-1, -2, -3, -4, -5, -6}, {2, 3}));
  const Var y = nll_loss(x, labels({2, 0}));
  CHECK(y.item() == 3.5);
  y.backward();
  CHECK(x.grad().to_vector() == Values{0, 0, -0.5, -0.5, 0, 0});
  CHECK(nll_loss(x, labels({2, 0}), Reduction::sum).item() == 7);
}

TEST_CASE("an empty batch: the mean is NaN, the sum 0") {
  const Var x = leaf(Tensor::zeros({0, 3})), t(Tensor::zeros({0, 3})), none(Tensor::zeros({0}, DType::i64));
  CHECK(std::isnan(cross_entropy(x, none).item()));
  CHECK(cross_entropy(x, none, {0.1, Reduction::sum}).item() == 0);
  CHECK(std::isnan(nll_loss(x, none).item()));
  CHECK(nll_loss(x, none, Reduction::sum).item() == 0);
  for (auto* f : {mse_loss, l1_loss, binary_cross_entropy, binary_cross_entropy_with_logits}) {
    const Var y = f(x, t, Reduction::mean);
    CHECK(std::isnan(y.item()));
    CHECK(f(x, t, Reduction::sum).item() == 0);
    x.zero_grad();
    y.backward();
    CHECK(x.grad().shape() == Shape{0, 3});
  }
}

TEST_CASE("losses over elements give PyTorch's values and both gradients") {
  const Var a = f64({1.0, -2.0, 0.5, 0.3}, {4}), b = f64({0.5, 1.0, 0.5, -0.1}, {4});
  const auto run = [&](const Var& y, double loss, const Values& da) {
    a.zero_grad();
    b.zero_grad();
    CHECK(y.value().rank() == 0);
    CHECK(y.item() == doctest::Approx(loss).epsilon(1e-14));
    y.backward();
    check_close(a.grad(), da);
    Values db = da;
    for (double& v : db) v = -v;
    check_close(b.grad(), db);
  };
  run(mse_loss(a, b), 2.3525, {0.25, -1.5, 0, 0.2});
  run(mse_loss(a, b, Reduction::sum), 9.41, {1, -6, 0, 0.8});
  run(l1_loss(a, b), 0.975, {0.25, -0.25, 0, 0.25});
  run(l1_loss(a, b, Reduction::sum), 3.9, {1, -1, 0, 1});
  run(smooth_l1_loss(a, b, 0.45), 0.8069444444444445, {0.25, -0.25, 0, 0.22222222222222224});
  run(smooth_l1_loss(a, b, 0), 0.975, {0.25, -0.25, 0, 0.25});
}

TEST_CASE("binary cross entropy: PyTorch's values, its clamps, and the stable form") {
  const Var p = f64({0.2, 0.9, 0.5, 0.0, 1.0}, {5}), t = f64({0.0, 1.0, 0.25, 1.0, 0.0}, {5});
  const Var y = binary_cross_entropy(p, t);
  CHECK(y.item() == doctest::Approx(40.20433024950639).epsilon(1e-14));
  y.backward();
  check_close(p.grad(), {0.25, -0.2222222222222222, 0.2, -2e11, 2e11}, 1e-9);
  check_close(t.grad(), {0.2772588722239781, -0.4394449154672439, 0, 20, -20});  // of the clamped logarithms

  const Var x = f64({-3.0, 0.5, 20.0, -800.0}, {4}), u = f64({0.0, 1.0, 0.25, 1.0}, {4});
  const Var z = binary_cross_entropy_with_logits(x, u);
  CHECK(z.item() == doctest::Approx(203.88066608445376).epsilon(1e-14));
  z.backward();
  check_close(x.grad(), {0.011856468294391695, -0.09438516719953635, 0.18749999948471158, -0.25});
  check_close(u.grad(), {0.75, -0.125, -5, 200});

  // Both forms agree, and the logits form keeps the digits of s - 1 in FP32.
  const Var logits = leaf(Tensor::from({15}, {1})), one(Tensor::from({1}, {1}));
  const Var small = binary_cross_entropy_with_logits(logits, one);
  CHECK(small.item() == doctest::Approx(std::log1p(std::exp(-15.0))).epsilon(1e-6));
  small.backward();
  CHECK(logits.grad().item() == doctest::Approx(-1 / (1 + std::exp(15.0))).epsilon(1e-6));
}

TEST_CASE("losses over elements in 16 bits sum in FP32") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Tensor x = Tensor::uniform({1001}, {8, 1}, 0.05, 0.95).to(dtype);
    const Tensor t = Tensor::uniform({1001}, {8, 2}, 0.05, 0.95).to(dtype);
    for (auto* f : {mse_loss, l1_loss, binary_cross_entropy, binary_cross_entropy_with_logits}) {
      const Var a = leaf(x), b = leaf(x.to(DType::f64));
      const Var y = f(a, Var(t), Reduction::mean), want = f(b, Var(t.to(DType::f64)), Reduction::mean);
      CHECK(y.dtype() == dtype);
      CHECK(y.item() == doctest::Approx(want.item()).epsilon(rounding(dtype)));
      y.backward();
      want.backward();
      for (int64_t i = 0; i < 1001; ++i)
        REQUIRE(std::abs(a.grad().at(i) - b.grad().at(i)) <= rounding(dtype) * std::abs(b.grad().at(i)) + 0x1p-24);
    }
  }
  const Var x(Tensor::full({4}, 300, DType::bf16)), zero(Tensor::zeros({4}, DType::bf16));
  CHECK(mse_loss(x, zero).item() == doctest::Approx(90000).epsilon(1.0 / 250));
  CHECK(l1_loss(Var(Tensor::full({70000}, 1, DType::f16)), Var(Tensor::zeros({70000}, DType::f16))).item() == 1);
}

TEST_CASE("only the gradients that are wanted") {
  const Var x(Tensor::full({2}, 3)), t = leaf(Tensor::full({2}, 1));
  mse_loss(x, t).backward();
  CHECK(t.grad().to_vector() == Values{-2, -2});
  CHECK(!x.grad().defined());
  const Var both = leaf(Tensor::full({2}, 3));
  mse_loss(both, both).backward();
  CHECK(both.grad().to_vector() == Values{0, 0});
}

TEST_CASE("bad labels are named with their row") {
  const Var x(Tensor::zeros({4, 10}));
  CHECK(error_of([&] {
          cross_entropy(x, labels({0, 9, 3, 10}, DType::i32));
        }) ==
        "cross_entropy: label 10 of row 3 is not in [0, 10); labels are class indices from 0 (logits [4,10] f32 cpu, "
        "labels [4] i64 cpu)");
  CHECK(error_of([&] {
          cross_entropy(x, labels({0, -1, 3, 10}));
        }).find("label -1 of row 1 is not in [0, 10)") != std::string::npos);
  CHECK(error_of([&] {
          nll_loss(x, labels({0, 9, 12, 1}));
        }) ==
        "nll_loss: label 12 of row 2 is not in [0, 10); labels are class indices from 0 (log_probabilities [4,10] f32 "
        "cpu, labels [4] i64 cpu)");
  CHECK(error_of([&] {
          cross_entropy(Var(Tensor::zeros({1, 0})), labels({0}));
        }).find("not in [0, 0)") != std::string::npos);
}

TEST_CASE("error texts of the losses") {
  const Var x(Tensor::zeros({2, 3}));
  CHECK(error_of([&] { softmax(x, 2); }) == "softmax: axis 2 is out of range for rank 2 (x [2,3] f32 cpu)");
  CHECK(error_of([&] { log_softmax(Var(Tensor::zeros({}))); }) ==
        "log_softmax: axis -1 is out of range for rank 0 (x [] f32 cpu)");
  CHECK(error_of([&] { softmax(labels({1})); }) ==
        "softmax: the input must be floating; cast() it first (x [1] i64 cpu)");
  CHECK(error_of([&] { cross_entropy(x, labels({0})); }) ==
        "cross_entropy: labels must be [2], one a row (logits [2,3] f32 cpu, labels [1] i64 cpu)");
  CHECK(error_of([&] { cross_entropy(x, Var(Tensor::zeros({2}))); }) ==
        "cross_entropy: labels must be i32 or i64 class indices (logits [2,3] f32 cpu, labels [2] f32 cpu)");
  CHECK(error_of([&] {
          nll_loss(Var(Tensor::zeros({3})), labels({0, 0, 0}));
        }) ==
        "nll_loss: log_probabilities must be [n, classes] but has rank 1 (log_probabilities [3] f32 cpu, labels [3] "
        "i64 cpu)");
  CHECK(error_of([&] {
          cross_entropy(x, labels({0, 0}), {.label_smoothing = 1});
        }) == "cross_entropy: label_smoothing is 1 but must lie in [0, 1) (logits [2,3] f32 cpu)");
  CHECK(error_of([&] {
          cross_entropy(x, labels({0, 0}), {.label_smoothing = NAN});
        }).find("must lie in [0, 1)") != std::string::npos);
  CHECK(error_of([&] { mse_loss(x, Var(Tensor::zeros({3}))); }) ==
        "mse_loss: the target must have the input's shape; reshape() it (x [2,3] f32 cpu, target [3] f32 cpu)");
  CHECK(error_of([&] {
          l1_loss(x, Var(Tensor::zeros({2, 3}, DType::f16)));
        }) == "l1_loss: dtypes differ; cast() the target to the input's (x [2,3] f32 cpu, target [2,3] f16 cpu)");
  CHECK(error_of([&] { mse_loss(labels({1}), labels({1})); }) ==
        "mse_loss: the input must be floating; cast() it first (x [1] i64 cpu, target [1] i64 cpu)");
  CHECK(error_of([&] { smooth_l1_loss(x, x, -1); }) ==
        "smooth_l1_loss: beta is -1 but must be 0 or more (x [2,3] f32 cpu)");
  const Var p(Tensor::from({0.5, 1.5}, {2}));
  CHECK(error_of([&] { binary_cross_entropy(p, p); }) ==
        "binary_cross_entropy: x[1] is 1.5, not a probability in [0, 1]; apply sigmoid(), or use "
        "binary_cross_entropy_with_logits (x [2] f32 cpu, target [2] f32 cpu)");
}

TEST_CASE("amp tags") {
  for (const char* name : {"softmax", "log_softmax", "cross_entropy", "nll_loss", "mse_loss", "l1_loss",
                           "smooth_l1_loss", "binary_cross_entropy_with_logits"})
    CHECK(find_op(name).tag == AmpTag::deny);
  CHECK(find_op("binary_cross_entropy").tag == AmpTag::forbid);
  CHECK(find_op("binary_cross_entropy").reason.find("binary_cross_entropy_with_logits") != std::string_view::npos);
}
