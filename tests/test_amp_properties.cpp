// Properties of the loss scaler: random events against a plain model of it, and nothing changes when anything that is
// not finite shows up anywhere.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "models/layers.h"
#include "models/sequential.h"
#include "ops/ops.h"
#include "optim/adamw.h"
#include "tests/amp_rig.h"
#include "tests/on_devices.h"

using namespace ht;

namespace {
// What the scaler should do, in the plainest words.
struct PlainScaler {
  double scale, growth = 2, backoff = 0.5, least, most;
  int64_t interval, good = 0, skips = 0, applied = 0;

  void step(bool bad_gradient, bool bad_loss) {
    bad_gradient || bad_loss ? ++skips : ++applied;
    if (bad_loss) return;
    if (bad_gradient) {
      scale = std::max(scale * backoff, least);
      good = 0;
    } else if (++good == interval) {
      scale = std::min(scale * growth, most);
      good = 0;
    }
  }
};

void random_events(Device device) {
  std::mt19937 random(17);
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const int runs = device.is_cuda() ? 10 : 60;
  for (int run = 0; run < runs; ++run) {
    const double least = std::exp2(pick(4)), most = least * std::exp2(pick(12));
    PlainScaler plain{.scale = least, .least = least, .most = most, .interval = 1 + pick(5)};
    const int bad_in_ten = pick(8);
    AmpRig rig(device, {1}, {.lr = 0},
               {.init_scale = plain.scale,
                .min_loss_scale = least,
                .max_loss_scale = most,
                .growth_interval = plain.interval,
                .max_consecutive_skips = 1000});
    for (int i = 0; i < 60; ++i) {
      bool bad_gradient = false, bad_loss = false;
      rig.sgd.zero_grad();
      for (int micro = 1 + pick(3); micro > 0; --micro) {  // accumulated
        const int event = pick(10) < bad_in_ten ? 1 + pick(3) : 0;
        if (event == 3) {
          const Var inf = Tensor::full({1}, pick(2) ? kInf : kNaN).to(device);
          rig.amp.backward(sum(mul(rig.model.w, inf)));
          bad_loss = true;
        } else {
          rig.backward({1});
          if (event > 0) rig.model.w.grad_slot().fill_(event == 1 ? kInf : kNaN), bad_gradient = true;
        }
      }
      rig.sgd.step();
      plain.step(bad_gradient, bad_loss);
      const amp::Status s = rig.amp.status();
      REQUIRE(s.scale == plain.scale);
      REQUIRE(s.growth_tracker == plain.good);
      REQUIRE(s.skipped_steps == plain.skips);
      REQUIRE(s.applied_steps == plain.applied);
    }
  }
}

// A network with batch norm; every piece of its training state as bits.
template <class O>
struct Training {
  Training(Device d, const amp::Options& options, O make) : device(d) {
    manual_seed(3);
    net.add<nn::Conv2d>(2, 4, 3, nn::ConvOptions{.padding = 1});
    net.add<nn::BatchNorm2d>(4);
    net.add<nn::ReLU>();
    net.add<nn::MaxPool2d>();
    net.add<nn::Flatten>();
    net.add<nn::Linear>(4 * 4, 5, nn::LinearOptions{.spatial = {2, 2}});
    net.add<nn::BatchNorm1d>(5);
    net.add<nn::Linear>(5, 3);
    net.to(device);
    optimizer = make(net.parameters());
    amp = std::make_unique<amp::Amp>(amp::initialize(net, *optimizer, options));
  }
  Var loss(const Tensor& x) {
    const Var y = Tensor::from({0, 1, 2, 0, 1}, {5}, DType::i64).to(device);
    return cross_entropy(net(x.to(device)), y);
  }
  Tensor batch(uint64_t i) const { return Tensor::normal({5, 4, 4, 2}, {21, i}); }
  void good_step(uint64_t i) {
    optimizer->zero_grad();
    amp->backward(loss(batch(i)));
    optimizer->step();
  }
  std::vector<std::vector<double>> state() const {
    std::vector<std::vector<double>> all;
    for (const auto& [name, t] : net.state_dict()) all.push_back(bits_of(t));
    for (const auto& [name, t] : optimizer->state_dict()) all.push_back(bits_of(t));
    for (const Var& p : net.parameters()) {
      all.push_back(bits_of(p.value()));
      if (p.state()->twin) all.push_back(bits_of(p.state()->twin));
    }
    return all;
  }

  Device device;
  nn::Sequential net;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<amp::Amp> amp;
};

template <class O>
void inject(Device device, const amp::Options& options, O make) {
  std::mt19937 random(5);
  const auto pick = [&](size_t n) { return static_cast<int64_t>(random() % n); };
  Training<O> t(device, options, make);
  for (uint64_t i = 0; i < 2; ++i) t.good_step(i);
  const std::vector<Var> params = t.net.parameters();
  const DType half = t.amp->settings().dtype;
  const double bad_values[] = {kInf, -kInf, kNaN};
  for (int run = 0; run < 40; ++run) {
    const auto before = t.state();
    const int64_t skips = t.optimizer->record().skips;
    t.optimizer->zero_grad();
    const int64_t where = pick(4), microbatches = 1 + pick(2), bad_one = pick(static_cast<size_t>(microbatches));
    const Var& p = params[static_cast<size_t>(pick(params.size()))];
    const int64_t at = pick(static_cast<size_t>(p.value().numel()));
    const double bad = where == 1 ? kNaN : bad_values[pick(3)];  // relu can hide an infinite weight
    std::vector<Tensor> weights;
    if (where == 1) {  // a weight that went bad, and is mended afterwards: its master, half copy and all
      weights = {p.value().clone(), p.state()->twin ? p.state()->twin.clone() : Tensor()};
      p.value().view({p.value().numel()}).rows(at, at + 1).fill_(bad);
    }
    for (int64_t m = 0; m < microbatches; ++m) {
      Tensor x = t.batch(100 + static_cast<uint64_t>(3 * run + m));
      if (where == 0 && m == bad_one) x.view({x.numel()}).rows(pick(5), 6).fill_(bad);  // input
      // Beyond the half dtype, so that the batch statistics are not finite.
      if (where == 3 && m == bad_one) x.copy_(Tensor::normal(x.shape(), {22, 1}, 0, half == DType::f16 ? 1e20 : 1e39));
      t.amp->backward(t.loss(x));
      if (where == 2 && m == bad_one) p.grad_slot().view({p.value().numel()}).rows(at, at + 1).fill_(bad);
    }
    t.optimizer->step();
    if (where == 1) {
      p.load(weights[0]);
      if (weights[1]) {
        p.state()->twin.copy_(weights[1]);
        p.state()->mark_twin();
      }
    }
    REQUIRE_MESSAGE(t.optimizer->record().skips == skips + 1, "kind ", where, " run ", run);
    REQUIRE_MESSAGE(t.state() == before, "kind ", where, " run ", run);
    if (run % 5 == 0) t.good_step(static_cast<uint64_t>(1000 + run));
  }
  CHECK(t.optimizer->applied_steps() == 2 + 8);
}

void injection(Device device) {
  const auto sgd = [](std::vector<Var> p) {
    return std::make_unique<optim::Sgd>(std::move(p), optim::SgdOptions{.lr = 0.01, .momentum = 0.9, .nesterov = true});
  };
  const auto adamw = [](std::vector<Var> p) { return std::make_unique<optim::AdamW>(std::move(p)); };
  for (const amp::Level level : {amp::O1, amp::O2, amp::O3, amp::fp16, amp::bf16}) {
    INFO(name_of(level));
    amp::Options options{.level = level, .max_consecutive_skips = 1000};
    inject(device, options, sgd);
    inject(device, options, adamw);
  }
  inject(device, {.num_losses = 2, .max_consecutive_skips = 1000}, sgd);
}
}  // namespace

HT_ON_DEVICES("scaler: random events against a plain model", random_events)
HT_ON_DEVICES("scaler: whatever is not finite, wherever, nothing changes", injection)
