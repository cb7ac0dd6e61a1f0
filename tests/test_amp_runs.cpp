// Worked examples of whole runs under mixed precision: resumed, disabled, captured as one CUDA graph; on the CPU and on
// CUDA. The number is the example's in docs/amp.md.
#include <doctest/doctest.h>

#include "core/captured_step.h"
#include "ops/ops.h"
#include "tests/amp_rig.h"
#include "tests/on_devices.h"

using namespace ht;
using amp::Options;

namespace {
// A small training with batch norm and dropout, over an overflow.
struct Run {
  explicit Run(Device device) {
    net.add<nn::Linear>(4, 8);
    net.add<nn::BatchNorm1d>(8);
    net.add<nn::ReLU>();
    net.add<nn::Dropout>(0.5);
    net.add<nn::Linear>(8, 3);
    net.to(device);
    sgd = std::make_unique<optim::Sgd>(net.parameters(),
                                       optim::SgdOptions{.lr = 0.05, .momentum = 0.9, .nesterov = true});
    amp = std::make_unique<amp::Amp>(amp::initialize(net, *sgd, {.init_scale = 256, .growth_interval = 3}));
  }
  void train(uint64_t from, uint64_t to, Device device) {
    for (uint64_t i = from; i < to; ++i) {
      sgd->zero_grad();
      const Tensor x = Tensor::normal({6, 4}, {11, i}, 0, i == 3 || i == 6 ? 1e6 : 1).to(device);
      amp->backward(cross_entropy(net(x), Tensor::from({0, 1, 2, 0, 1, 2}, {6}, DType::i64).to(device)));
      sgd->step();
    }
  }
  nn::Sequential net;
  std::unique_ptr<optim::Sgd> sgd;
  std::unique_ptr<amp::Amp> amp;
};

void resume(Device device) {
  set_deterministic(true);
  manual_seed(5);
  StateDict through_model, through_sgd, through_amp, model, sgd, amp;
  uint64_t position = 0;
  {
    Run whole(device);
    whole.train(0, 10, device);
    CHECK(whole.amp->status().skipped_steps == 2);
    through_model = whole.net.state_dict(), through_sgd = whole.sgd->state_dict(),
    through_amp = whole.amp->state_dict();
  }
  manual_seed(5);
  {
    Run first(device);
    first.train(0, 5, device);
    model = first.net.state_dict(), sgd = first.sgd->state_dict(), amp = first.amp->state_dict();
    position = Context::of(device).generator().position();
  }
  Run second(device);
  second.net.load_state_dict(model);
  second.sgd->load_state_dict(sgd);
  second.amp->load_state_dict(amp);
  Context::of(device).generator().set_position(position);
  second.train(5, 10, device);
  set_deterministic(false);
  const auto same = [](const StateDict& a, const StateDict& b) {
    REQUIRE(a.size() == b.size());
    for (const auto& [key, t] : a) CHECK_MESSAGE(bits_of(t) == bits_of(b.at(key)), key);
  };
  same(second.net.state_dict(), through_model);
  same(second.sgd->state_dict(), through_sgd);
  same(second.amp->state_dict(), through_amp);
}

void disabled(Device device) {
  set_deterministic(true);
  const auto trained = [&](int how) {
    manual_seed(2);
    nn::Linear layer(5, 3);
    layer.to(device);
    optim::Sgd sgd(layer.parameters(), {.lr = 0.1, .momentum = 0.9, .weight_decay = 1e-3});
    Options options;
    options.enabled = how != 1;
    if (how == 2) options.level = amp::O0;
    std::optional<amp::Amp> amp;
    if (how > 0) amp = amp::initialize(layer, sgd, options);
    for (uint64_t i = 0; i < 5; ++i) {
      sgd.zero_grad();
      const Var loss = mse_loss(layer(Tensor::normal({4, 5}, {1, i}).to(device)), Tensor::zeros({4, 3}).to(device));
      amp ? amp->backward(loss) : loss.backward();
      sgd.step();
    }
    return bits_of(layer.weight.value());
  };
  CHECK(trained(1) == trained(0));
  CHECK(trained(2) == trained(0));
  set_deterministic(false);
}

// The whole step as one CUDA graph (on the CPU: as it is), over overflows in the gradient and in the forward.
std::vector<std::vector<double>> trained(Device device, bool captured, amp::Level level) {
  manual_seed(6);
  nn::Sequential net = small_network();
  net.to(device);
  optim::Sgd sgd(net.parameters(), {.lr = 0.05, .momentum = 0.9});
  sgd.set_schedule(optim::step_lr(3, 0.5), 100);
  sgd.set_clip({.norm = 1});
  amp::Amp amp = amp::initialize(net, sgd, {.level = level, .loss_scale = amp::dynamic, .init_scale = 0x1p24});
  const auto body = [&](std::span<const Tensor> in) {
    sgd.zero_grad();
    amp.backward(cross_entropy(net(in[0]), in[1]));
    sgd.step();
  };
  CapturedStep step(device, body);
  for (uint64_t i = 0; i < 24; ++i) {
    const Tensor x = Tensor::normal({6, 4, 4, 3}, {12, i}, 0, i % 7 == 6 ? 1e9 : 1).to(device);
    const Tensor in[] = {x, Tensor::from({0, 1, 2, 0, 1, 2}, {6}, DType::i64).to(device)};
    captured ? step(in) : body(in);
  }
  CHECK(step.replayed() == (captured && device.is_cuda()));
  const amp::Status status = amp.status();
  CHECK(status.skipped_steps >= 3);
  CHECK(status.applied_steps >= 3);
  std::vector<std::vector<double>> all;
  for (const StateDict& state : {net.state_dict(), sgd.state_dict(), amp.state_dict()})
    for (const auto& [name, t] : state) all.push_back(bits_of(t));
  for (const Var& p : net.parameters()) all.push_back(bits_of(p.value()));
  const Var y = net(Tensor::normal({6, 4, 4, 3}, {12, 99}).to(device));  // the half copies are those of the weights
  all.push_back(bits_of(y.value()));
  return all;
}
void capture(Device device) {
  set_deterministic(true);
  for (const amp::Level level : {amp::O1, amp::O2})
    CHECK(trained(device, true, level) == trained(device, false, level));
  set_deterministic(false);
}

// A report repeats the newest step with its random numbers; replays, too, tell where they began.
void random_position(Device device) {
  Run run(device);
  CapturedStep step(device, [&](std::span<const Tensor> in) {
    run.sgd->zero_grad();
    run.amp->backward(cross_entropy(run.net(in[0]), in[1]));
    run.sgd->step();
  });
  const Tensor x = Tensor::normal({6, 4}, {11, 1}).to(device), y = Tensor::zeros({6}, DType::i64, device);
  for (int i = 0; i < 6; ++i) {
    const uint64_t before = Context::of(device).generator().position();
    step({x, y});
    CHECK(run.amp->random_position() == before);
    CHECK(Context::of(device).generator().position() == before + 1);
  }
}
}  // namespace

HT_ON_DEVICES("amp: where the newest step's random numbers began, eager and replayed", random_position)
HT_ON_DEVICES("amp example 22: resume", resume)
HT_ON_DEVICES("amp example 23: disabled", disabled)
HT_ON_DEVICES("amp example 25: the whole step in one CUDA graph", capture)
