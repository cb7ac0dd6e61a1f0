// The average of a model's weights: its values by hand, what a skipped step leaves alone, what it refuses.
#include <doctest/doctest.h>

#include "amp/amp.h"
#include "models/layers.h"
#include "models/sequential.h"
#include "optim/ema.h"
#include "optim/sgd.h"
#include "tests/error_of.h"
#include "tests/on_devices.h"

using namespace ht;
using optim::Ema;

namespace {
std::unique_ptr<Module> network(int64_t features = 37) {
  auto net = std::make_unique<nn::Sequential>();
  net->add<nn::Linear>(3, features);
  net->add<nn::BatchNorm1d>(features);
  return net;
}

// One step that takes exactly `by` from each weight of the first layer.
void move_weights(Module& net, optim::Sgd& sgd, double by) {
  sgd.zero_grad();
  const Var weight = net.parameters()[0];
  weight.grad_slot() = Tensor::full(weight.shape(), by, DType::f32, weight.device());
  sgd.step();
}

std::vector<double> values(const Var& v) { return v.value().to(Device::cpu()).to_vector(); }

bool close(const std::vector<double>& a, double offset, const std::vector<double>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (std::abs(a[i] + offset - b[i]) > 1e-6) return false;
  return a.size() == b.size();
}
}  // namespace

TEST_CASE("rate: 1 - decay^every, more in the first updates") {
  CHECK(optim::ema_rate({.decay = 0.9}, 1) == doctest::Approx(9.0 / 11));
  CHECK(optim::ema_rate({.decay = 0.9}, 79) == doctest::Approx(9.0 / 89));
  CHECK(optim::ema_rate({.decay = 0.9}, 81) == doctest::Approx(0.1));
  CHECK(optim::ema_rate({.decay = 0.5, .every = 2}, 4) == doctest::Approx(0.75));
  CHECK(optim::ema_rate({.decay = 0.999, .every = 2}, 4) == doctest::Approx(0.75));  // update 2: 9 / 12
}

static void follows(Device device) {
  const auto net = network();
  net->to(device);
  optim::Sgd sgd(net->parameters(), {.lr = 1});
  const std::vector<double> first = values(net->parameters()[0]);
  Ema ema(*net, network(), sgd, {.decay = 0.25});
  CHECK(values(ema.model().parameters()[0]) == first);
  CHECK(ema.model().parameters()[0].device() == device);
  move_weights(*net, sgd, 1);
  ema.update(1);  // rate 9 / 11
  CHECK(close(first, -9.0 / 11, values(ema.model().parameters()[0])));
  move_weights(*net, sgd, 1);
  ema.update(2);  // rate 0.75
  CHECK(close(first, -9.0 / 11 + 0.75 * (-2 + 9.0 / 11), values(ema.model().parameters()[0])));
  // Running statistics are averaged, the count of batches is copied.
  const Var x(Tensor::from({1, 2, 3, 4, 6, 8}, {2, 3}).to(device));
  (*net)(x);
  const std::vector<double> mean = values(net->named_buffers()[0].second);
  ema.update(3);
  CHECK(values(ema.model().named_buffers()[0].second)[5] == doctest::Approx(0.75 * mean[5]));
  CHECK(ema.model().named_buffers()[2].second.value().item() == 1);
}
HT_ON_DEVICES("the average follows the model", follows)

static void every_second(Device device) {
  const auto net = network();
  net->to(device);
  optim::Sgd sgd(net->parameters(), {.lr = 1});
  Ema ema(*net, network(), sgd, {.decay = 0, .every = 2});
  const std::vector<double> first = values(net->parameters()[0]);
  move_weights(*net, sgd, 1);
  ema.update(1);
  CHECK(values(ema.model().parameters()[0]) == first);
  move_weights(*net, sgd, 1);
  ema.update(2);
  CHECK(close(first, -2, values(ema.model().parameters()[0])));
}
HT_ON_DEVICES("every: the steps between are left out", every_second)

static void skips(Device device) {
  for (const amp::Level level : {amp::O1, amp::O2, amp::O3}) {
    CAPTURE(static_cast<int>(level));
    const auto net = network();
    net->to(device);
    optim::Sgd sgd(net->parameters(), {.lr = 0.5});
    amp::Amp amp = amp::initialize(*net, sgd, {.level = level, .loss_scale = 8});
    Ema ema(*net, network(), sgd, {.decay = 0.5});
    const Var x(Tensor::normal({4, 3}, {1, 1}).to(device));
    const auto step = [&](bool bad, int64_t number) {
      sgd.zero_grad();
      amp.backward(mean((*net)(x)));
      if (bad) net->parameters()[0].grad_slot().fill_(INFINITY);
      sgd.step();
      ema.update(number);
    };
    step(false, 1);
    const StateDict before = ema.model().state_dict();
    step(true, 2);
    StateDict after = ema.model().state_dict();
    for (const auto& [key, tensor] : before) CHECK_MESSAGE(tensor.to_vector() == after.at(key).to_vector(), key);
    step(false, 3);
    after = ema.model().state_dict();
    CHECK(before.at("1.running_mean").to_vector() != after.at("1.running_mean").to_vector());
    CHECK(after.at("1.num_batches_tracked").item() == 2);
  }
}
HT_ON_DEVICES("a step that amp skips leaves the average alone", skips)

TEST_CASE("what Ema refuses") {
  const auto net = network();
  optim::Sgd sgd(net->parameters(), {.lr = 1});
  CHECK(error_of([&] { Ema(*net, network(), sgd, {.decay = 1}); }) == "ema: decay is 1; it must be in [0, 1)");
  CHECK(error_of([&] { Ema(*net, network(), sgd, {.every = 0}); }) == "ema: every is 0 steps; it must be at least 1");
  CHECK_THROWS_AS(Ema(*net, network(5), sgd, {}), Error);
}
