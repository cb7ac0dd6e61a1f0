// The first ten losses of two trainings against PyTorch's, from the same weights and data
// (tests/golden/make_losses.py).
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/layers.h"
#include "models/vgg.h"
#include "optim/sgd.h"

using namespace ht;

namespace {
constexpr uint64_t kSeed = 42;

Tensor stream(uint64_t number, const Shape& shape, double bound) {
  return Tensor::uniform(shape, {kSeed, number}, -bound, bound);
}

std::vector<double> golden(const char* name) {
  std::ifstream in(HT_SOURCE_DIR "/tests/golden/losses.json");
  REQUIRE(in);
  return nlohmann::json::parse(in)[name].get<std::vector<double>>();
}

void check_losses(const std::vector<double>& expected, Module& model, double momentum, double lr,
                  const std::function<Var()>& loss_of) {
  optim::Sgd sgd(model.parameters(), {.lr = lr, .momentum = momentum});
  double worst = 0;
  for (const double e : expected) {
    sgd.zero_grad();
    const Var loss = loss_of();
    loss.backward();
    sgd.step();
    worst = std::max(worst, std::abs(loss.item() - e) / e);
    CHECK(loss.item() == doctest::Approx(e).epsilon(1e-4));
  }
  MESSAGE("largest relative difference over ", expected.size(), " losses: ", worst);
}
}  // namespace

TEST_CASE("golden: the linear regression's first ten losses are PyTorch's") {
  nn::Linear model(1024, 512);
  model.load_state_dict({{"weight", stream(0, {512, 1024}, 1.0 / 32)}, {"bias", stream(1, {512}, 1.0 / 32)}});
  const Var x = stream(2, {64, 1024}, 1), y = stream(3, {64, 512}, 1);
  check_losses(golden("linear_regression"), model, 0, 1e-3, [&] { return mse_loss(model(x), y); });
}

TEST_CASE("golden: VGG16's first ten losses at an eighth of the width are PyTorch's") {
  nn::Sequential model = models::vgg16({.classes = 10, .width = 0.125});
  StateDict state = model.state_dict();
  uint64_t number = 10;
  for (const auto& [name, parameter] : model.named_parameters()) {
    Tensor& t = state.at(name);  // [out, in, kh, kw] for convolutions
    if (t.rank() == 4)
      t = stream(number++, t.shape(), std::sqrt(3.0 / static_cast<double>(t.numel() / t.dim(0))));
    else
      t.fill_(name.ends_with("weight") ? 1 : 0);
  }
  REQUIRE(number == 26);  // 13 convolutions and 3 of the head
  model.load_state_dict(state);
  const Var x = stream(4, {32, 32, 32, 3}, 1);
  const PhiloxStream labels{kSeed, 5};
  std::vector<int64_t> y(32);
  for (size_t i = 0; i < y.size(); ++i) y[i] = labels.bits(i) % 10;
  const Var target = Tensor::of<int64_t>(y, {32});
  check_losses(golden("vgg16"), model, 0.9, 0.01, [&] { return cross_entropy(model(x), target); });
}
