// Batch norms folded into convolutions: the network gives what it gave before, with fewer layers.
#include <doctest/doctest.h>

#include <cmath>

#include "core/context.h"
#include "models/fold.h"
#include "models/init.h"
#include "models/layers.h"
#include "models/vgg.h"
#include "tests/error_of.h"
#include "tests/on_devices.h"

using namespace ht;

namespace {
// Statistics and parameters of norms as after training, so that a wrong term shows.
void stir(const Module& net) {
  uint64_t stream = 0;
  for (const auto& vars : {net.named_parameters(), net.named_buffers()})
    for (const auto& [name, var] : vars) {
      if (!is_floating(var.dtype()) || var.shape().rank() != 1) continue;
      const bool positive = name.ends_with("running_var");
      const PhiloxStream random{.seed = 3, .stream = ++stream};
      var.value().copy_(Tensor::uniform(var.shape(), random, positive ? 0.3 : -1, positive ? 3 : 1));
    }
}

Tensor run(Module& net, const Tensor& x) {
  const no_grad guard;
  net.eval();
  return net(x).value().to(Device::cpu());
}

double relative_difference(const Tensor& a, const Tensor& b) {
  double difference = 0, size = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    difference += (a.at(i) - b.at(i)) * (a.at(i) - b.at(i));
    size += b.at(i) * b.at(i);
  }
  REQUIRE(size > 0);
  return std::sqrt(difference / size);
}

// Both networks, folded, against themselves before.
void check_networks(Device device) {
  for (const bool classic : {false, true})
    for (const auto& [dtype, bound] : {std::pair(DType::f64, 1e-12), std::pair(DType::f32, 1e-5)}) {
      manual_seed(1);
      nn::Sequential net = classic ? models::vgg({.width = 0.125, .hidden = 0}) : models::vgg16({.width = 0.125});
      nn::kaiming_fan_out_(net);
      stir(net);
      net.to(dtype);
      net.to(device);
      const Tensor x = Tensor::normal({3, 32, 32, 3}, {.seed = 4}, 0, 1, dtype).to(device);
      const Tensor wanted = run(net, x);
      nn::fold_batch_norm_(net);
      INFO("classic " << classic << ' ' << dtype);
      CHECK(net.named_buffers().empty());
      CHECK(relative_difference(run(net, x), wanted) < bound);
      if (dtype == DType::f64) continue;
      net.to(DType::f16);  // rounding adds up over 16 layers of 11 bits
      CHECK(relative_difference(run(net, x.to(DType::f16)), wanted) < 1e-2);
    }
}
}  // namespace

HT_ON_DEVICES("vgg16 and the classic vgg give the same logits, and nearly so in half precision", check_networks)

TEST_CASE("weight and bias by hand, with and without a bias before") {
  for (const bool with_bias : {false, true}) {
    nn::Sequential net;
    auto& conv = net.add<nn::Conv2d>(1, 2, 1, nn::ConvOptions{.bias = with_bias});
    auto& norm = net.add<nn::BatchNorm2d>(2, nn::NormOptions{.eps = 1});
    conv.weight.value().copy_(Tensor::from({2, -3}, {2, 1, 1, 1}));
    if (with_bias) conv.bias.value().copy_(Tensor::from({5, 7}, {2}));
    norm.weight.value().copy_(Tensor::from({4, 6}, {2}));
    norm.bias.value().copy_(Tensor::from({10, 20}, {2}));
    norm.running_mean.value().copy_(Tensor::from({1, 2}, {2}));
    norm.running_var.value().copy_(Tensor::from({3, 8}, {2}));  // a = 4 / 2, 6 / 3
    nn::fold_batch_norm_(net);
    CHECK(net.describe() == "Sequential(\n  (0): Conv2d(1, 2, kernel 1x1)\n)");
    CHECK(conv.weight.value().to_vector() == std::vector<double>{4, -6});
    CHECK(conv.bias.value().to_vector() == (with_bias ? std::vector<double>{18, 30} : std::vector<double>{8, 16}));
  }
}

TEST_CASE("layers keep their names; a norm that follows no convolution stays; channels must agree") {
  nn::Sequential net, inner;
  inner.add<nn::BatchNorm2d>(3);
  inner.add<nn::Conv2d>(3, 8, 3);
  inner.add<nn::BatchNorm2d>(8);
  inner.add<nn::ReLU>();
  inner.add<nn::BatchNorm2d>(8);
  net.append(std::move(inner), "features");
  nn::fold_batch_norm_(net);
  CHECK(net.describe() ==
        "Sequential(\n  (features): Sequential(\n    (0): BatchNorm2d(3, eps 1e-05, momentum 0.1)\n"
        "    (1): Conv2d(3, 8, kernel 3x3)\n    (3): ReLU()\n    (4): BatchNorm2d(8, eps 1e-05, momentum 0.1)\n  )\n)");

  nn::Conv2d conv(3, 8, 3);
  CHECK(error_of([&] { conv.fold(nn::BatchNorm2d(4)); }) ==
        "Conv2d: cannot fold a batch norm of 4 channels into a convolution that gives 8");
  CHECK(error_of([&] { net.erase(1); }) == "Sequential: child 1 of 1");
}
