// Worked examples of mixed precision, by hand, on the CPU and on CUDA. The number is the example's in docs/amp.md.
#include <doctest/doctest.h>

#include <cmath>

#include "models/layers.h"
#include "models/sequential.h"
#include "ops/ops.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "tests/amp_rig.h"
#include "tests/error_of.h"
#include "tests/on_devices.h"

using namespace ht;
using amp::Options;

namespace {
using Values = std::vector<double>;

Var on(Device device, std::initializer_list<double> values, const Shape& shape, DType dtype = DType::f32,
       bool grad = false) {
  return Var(Tensor::from(values, shape, dtype).to(device), grad);
}

void range(Device device) {
  const Var x = on(device, {65519.9, 65520, 0x1p-25, 1.01 * 0x1p-25}, {4}, DType::f64);
  CHECK(cast(cast(x, DType::f32), DType::f16).value().to_vector() == Values{65504, kInf, 0, 0x1p-24});
}

// The gradient 2^-26 of a half layer's output.
double trained_with(Device device, double scale) {
  nn::Linear layer(1, 1, {.bias = false});
  layer.weight.value().fill_(0);
  layer.to(device);
  optim::Sgd sgd(layer.parameters(), {.lr = 1});
  amp::Amp amp = amp::initialize(layer, sgd, {.loss_scale = scale});
  const Var y = layer(on(device, {1}, {1, 1}));
  CHECK(y.dtype() == DType::f16);
  amp.backward(ht::scale(sum(y), 0x1p-26));
  CHECK(layer.weight.grad_slot().dtype() == DType::f16);
  CHECK(layer.weight.grad().item() == (scale == 1 ? 0 : 0x1p-16));
  sgd.step();
  return layer.weight.value().item();
}

void small_gradients(Device device) {
  CHECK(trained_with(device, 1) == 0);
  CHECK(trained_with(device, 1024) == -0x1p-26);
}

void masters(Device device) {
  const Var w = on(device, {1}, {1}, DType::f32, true), alone = on(device, {1}, {1}, DType::f16, true);
  const Tensor copy = w.half_copy(DType::f16);
  optim::Sgd sgd({w, alone}, {.lr = 1e-4});
  for (int step = 1; step <= 100; ++step) {
    w.grad_slot() = on(device, {1}, {1}).value();
    alone.grad_slot() = on(device, {1}, {1}, DType::f16).value();
    sgd.step();
    CHECK(w.has_half_copy(DType::f16));  // written with the master
    if (step <= 3) CHECK(copy.item() == (step < 3 ? 1 : 0.99951171875));
  }
  CHECK(alone.item() == 1);
  CHECK(w.item() == doctest::Approx(0.989998).epsilon(1e-6));
  CHECK(copy.item() == 0.990234375);
}

void accumulation(Device device) {
  const Tensor ones = Tensor::full({1, 4096}, 1, DType::f16, device);
  const Tensor tenths = Tensor::full({1, 4096}, 0.1, DType::f16, device);
  const Tensor column = Tensor::full({4096, 1}, 1, DType::f16, device);
  CHECK(sum(ones).item() == 4096);
  CHECK(sum(tenths).item() == 409.5);
  CHECK(matmul(ones, column).item() == 4096);
  CHECK(matmul(tenths, column).item() == 409.5);
}

void squares(Device device) {
  CHECK(cast(mul(on(device, {300}, {1}), on(device, {300}, {1})), DType::f16).item() == kInf);
  amp::Autocast autocast({}, DType::f16);
  autocast.install();
  const Var x = on(device, {300, 400}, {2}, DType::f16), zero = on(device, {0, 0}, {2}, DType::f16);
  CHECK(norm(x).item() == 500);
  CHECK(mse_loss(x, zero).item() == 125000);
  CHECK(var(ht::scale(x, 16)).item() == doctest::Approx(1280000));
  CHECK(pow(x, 2).value().to_vector() == Values{90000, 160000});
}

void cross_entropy_loss(Device device) {
  amp::Autocast autocast({}, DType::f16);
  autocast.install();
  const Var logits = on(device, {12, 0, 0}, {1, 3}, DType::f16);
  const Var label = Tensor::zeros({1}, DType::i64).to(device);
  CHECK(cross_entropy(logits, label).item() == doctest::Approx(1.2288e-5).epsilon(1e-4));
}

double gradient_error(Device device, double seed) {
  amp::Autocast autocast({}, DType::f16);
  autocast.install();
  Tensor logits = Tensor::zeros({128, 3}, DType::f16);
  for (int64_t i = 0; i < 128; ++i) logits.data<Half>()[3 * i] = Half(12.0f);
  const Var x(logits.to(device), true);
  cross_entropy(x, Tensor::zeros({128}, DType::i64).to(device)).backward(Tensor::full({}, seed).to(device));
  const double p = 1 / (1 + 2 * std::exp(-12.0)), exact = (p - 1) / 128;
  CHECK(exact == doctest::Approx(-9.600e-8).epsilon(1e-3));
  CHECK(x.grad().dtype() == DType::f16);
  return std::abs(x.grad().at(0) / seed / exact - 1);
}

void cross_entropy_gradient(Device device) {
  CHECK(gradient_error(device, 1) == doctest::Approx(0.24).epsilon(0.02));
  CHECK(gradient_error(device, 65536) < 2e-4);
}

void scaled_loss(Device device) {
  CHECK(cast(on(device, {65536}, {}), DType::f16).item() == kInf);
  nn::Linear layer(1, 2, {.bias = false});
  layer.weight.value().copy_(Tensor::from({0, 40}, {2, 1}));
  layer.to(device);
  optim::Sgd sgd(layer.parameters());
  amp::Amp amp = amp::initialize(layer, sgd, {.loss_scale = 0x1p22});
  const Var logits = layer(Tensor::full({128, 1}, 1).to(device));  // (0, 40), label 0: |p - y| = 1
  const Var loss = cross_entropy(logits, Tensor::zeros({128}, DType::i64).to(device));
  CHECK(loss.dtype() == DType::f32);
  const Var probe(logits.value(), true);
  cross_entropy(probe, Tensor::zeros({128}, DType::i64).to(device)).backward(Tensor::full({}, 0x1p22).to(device));
  CHECK(probe.grad().at(0) == -32768);
  CHECK(probe.grad().at(1) == 32768);
  amp.backward(loss);
  CHECK(amp.scale() == 0x1p22);
}

void statistics_in_fp32(Device device) {
  Tensor x = Tensor::full({10, 1}, 1.00390625, DType::f16);
  x.data<Half>()[0] = Half(1.0048828125f);  // mean 1.004
  const Var gamma = on(device, {1}, {1}), beta = on(device, {0}, {1});
  const Tensor mean = on(device, {1}, {1}).value(), variance = on(device, {1}, {1}).value();
  for (int i = 0; i < 200; ++i) batch_norm(x.to(device), gamma, beta, {.mean = mean, .var = variance});
  CHECK(mean.item() == doctest::Approx(1.0040).epsilon(1e-5));
}

void shared_weight(Device device) {
  amp::Autocast autocast({}, DType::f16);
  autocast.install();
  const Var w = on(device, {1}, {1, 1}, DType::f32, true), x = on(device, {40000}, {1, 1});
  sum(add(linear(x, w), neg(neg(linear(x, w))))).backward();
  CHECK(w.grad_slot().dtype() == DType::f32);
  CHECK(w.grad().item() == 80000);
}

void types(Device device) {
  amp::Autocast autocast({}, DType::f16);
  autocast.install();
  const Var h = on(device, {1, 2}, {1, 2}, DType::f16, true), f = on(device, {1, 2}, {1, 2}, DType::f32, true);
  CHECK(add(h, f).dtype() == DType::f32);
  CHECK(add(h, h).dtype() == DType::f16);
  CHECK(matmul(f, transpose(f, 0, 1)).dtype() == DType::f16);
  sum(mul(h, f)).backward();
  CHECK(h.grad().dtype() == DType::f16);
  CHECK(f.grad().dtype() == DType::f32);
}
}  // namespace

HT_ON_DEVICES("amp example 1: range of half", range)
HT_ON_DEVICES("amp example 2: scaling saves small gradients", small_gradients)
HT_ON_DEVICES("amp example 3: a small update survives in the master", masters)
HT_ON_DEVICES("amp example 4: FP32 accumulation", accumulation)
HT_ON_DEVICES("amp example 5: squares in FP32", squares)
HT_ON_DEVICES("amp example 6: softmax and cross entropy", cross_entropy_loss)
HT_ON_DEVICES("amp example 7: its gradient at batch 128", cross_entropy_gradient)
HT_ON_DEVICES("amp example 8: the scaled loss is FP32", scaled_loss)
HT_ON_DEVICES("amp example 14: statistics in FP32", statistics_in_fp32)
HT_ON_DEVICES("amp example 19: a shared weight", shared_weight)
HT_ON_DEVICES("amp example 20: types", types)
