// Worked examples of steps under mixed precision: the loss scale, skips, clipping, order, resume; by hand, on the CPU
// and on CUDA. The number is the example's in docs/amp.md.
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
using Moves = std::vector<std::pair<double, int64_t>>;

Moves moves(AmpRig& rig, std::initializer_list<double> gradients) {
  Moves seen;
  for (const double g : gradients) {
    rig.step({g});
    const amp::Status s = rig.amp.status();
    seen.emplace_back(s.scale, s.growth_tracker);
  }
  return seen;
}

void growth_and_backoff(Device device) {
  AmpRig rig(device, {1}, {.lr = 1e-3}, {.init_scale = 8, .growth_interval = 3});
  CHECK(moves(rig, {1, 1, 1, kInf, 1, 1}) == Moves{{8, 1}, {8, 2}, {16, 0}, {8, 0}, {8, 1}, {8, 2}});
  CHECK(rig.amp.status().skipped_steps == 1);
  CHECK(rig.amp.status().applied_steps == 5);
  AmpRig fixed(device, {1}, {.lr = 1e-3}, {.loss_scale = 8, .growth_interval = 3});
  CHECK(moves(fixed, {1, 1, 1, kInf, 1})[4] == std::pair(8.0, int64_t{0}));
  CHECK(fixed.amp.status().skipped_steps == 1);  // a static scale skips, too
}

void counter_resets(Device device) {
  AmpRig rig(device, {1}, {.lr = 1e-6}, {});
  for (int i = 0; i < 1999; ++i) rig.step({1});
  CHECK(rig.amp.status().growth_tracker == 1999);
  CHECK(moves(rig, {kInf}) == Moves{{32768, 0}});
  for (int i = 0; i < 1999; ++i) rig.step({1});
  CHECK(moves(rig, {1}) == Moves{{65536, 0}});
}

void scale_bounds(Device device) {
  AmpRig rig(device, {1}, {.lr = 1e-6}, {.growth_interval = 1, .max_consecutive_skips = 1000});
  for (int i = 0; i < 60; ++i) rig.step({kNaN});
  CHECK(rig.amp.scale() == 1);
  for (int i = 0; i < 40; ++i) rig.step({1});
  CHECK(rig.amp.scale() == 0x1p24);
}

void skip_is_total(Device device) {
  AmpRig rig(device, {2}, {.lr = 0.1, .momentum = 0.9}, {.init_scale = 1024});
  StateDict state = rig.sgd.state_dict();
  state["w.momentum_buffer"].fill_(1);
  state["w.step"].fill_(1);
  rig.sgd.load_state_dict(state);
  const optim::Schedule falling{"falling", [](int64_t step) { return step == 0 ? 1.0 : 0.5; }};
  rig.sgd.set_schedule(falling, 10);
  const Tensor copy = rig.model.w.half_copy(DType::f16);
  rig.step({kInf});
  CHECK(rig.w() == Values{2});
  CHECK(rig.momentum() == 1);
  CHECK(copy.item() == 2);
  CHECK(rig.sgd.state_dict().at("w.step").item() == 1);
  CHECK(rig.sgd.applied_steps() == 0);
  CHECK(rig.sgd.lr() == doctest::Approx(0.1));
  rig.step({1});
  CHECK(rig.momentum() == doctest::Approx(1.9));
  CHECK(rig.w()[0] == doctest::Approx(1.81));
  CHECK(copy.item() == Tensor::full({}, rig.w()[0], DType::f16).item());
  CHECK(rig.sgd.applied_steps() == 1);
  CHECK(rig.sgd.lr() == doctest::Approx(0.05));
}

void first_step_skipped(Device device) {
  AmpRig rig(device, {0}, {.lr = 1, .momentum = 0.5, .dampening = 0.75}, {.init_scale = 4});
  rig.step({kNaN});
  CHECK(rig.momentum() == 0);
  rig.step({4});  // still the first: v = 4, not dampened
  CHECK(rig.w() == Values{-4});
  rig.step({4});  // v = 0.5 * 4 + 0.25 * 4
  CHECK(rig.w() == Values{-7});
}

struct NormModel {
  explicit NormModel(Device device, const Options& options = {.init_scale = 1024}) {
    net.add<nn::Linear>(2, 3);
    net.add<nn::BatchNorm1d>(3);
    net.add<nn::Linear>(3, 1);
    net.to(device);
    sgd = std::make_unique<optim::Sgd>(net.parameters(), optim::SgdOptions{.lr = 0.01, .momentum = 0.9});
    amp = std::make_unique<amp::Amp>(amp::initialize(net, *sgd, options));
  }
  Var loss(double magnitude, uint64_t stream = 0) {
    const Tensor x = Tensor::normal({4, 2}, {3, stream}, 0, magnitude).to(net.parameters()[0].device());
    return mean(net(x));
  }
  std::vector<std::vector<double>> everything() const {
    std::vector<std::vector<double>> all;
    for (const auto& [name, t] : net.state_dict()) all.push_back(bits_of(t));
    for (const auto& [name, t] : sgd->state_dict()) all.push_back(bits_of(t));
    for (const Var& p : net.parameters())
      if (p.state()->twin) all.push_back(bits_of(p.state()->twin));
    return all;
  }
  nn::Sequential net;
  std::unique_ptr<optim::Sgd> sgd;
  std::unique_ptr<amp::Amp> amp;
};

void statistics_under_overflow(Device device) {
  manual_seed(1);
  NormModel m(device);
  for (int i = 0; i < 3; ++i) {
    m.sgd->zero_grad();
    m.amp->backward(m.loss(1));
    m.sgd->step();
  }
  CHECK(m.sgd->applied_steps() == 3);
  const auto before = m.everything();
  SUBCASE("an infinite batch: the forward itself leaves the statistics alone") {
    m.sgd->zero_grad();
    m.amp->backward(m.loss(1e6));
    m.sgd->step();
  }
  SUBCASE("a bad gradient: the forward has moved the statistics, the skip puts them back") {
    m.sgd->zero_grad();
    m.amp->backward(m.loss(1));
    CHECK(m.everything() != before);
    m.net.parameters()[0].grad_slot().fill_(kInf);
    m.sgd->step();
  }
  SUBCASE("accumulated over two batches") {
    m.sgd->zero_grad();
    m.amp->backward(m.loss(1));
    m.amp->backward(m.loss(1e6));
    m.sgd->step();
  }
  CHECK(m.everything() == before);
  CHECK(m.amp->status().skipped_steps == 1);
  m.sgd->zero_grad();
  m.amp->backward(m.loss(1));
  m.sgd->step();
  CHECK(m.everything() != before);
  CHECK(m.net.state_dict().at("1.num_batches_tracked").item() == 4);
}

void loaded_statistics(Device device) {
  NormModel m(device);
  m.sgd->zero_grad();
  m.amp->backward(m.loss(1));
  m.sgd->step();
  StateDict state = m.net.state_dict();
  state.at("1.running_mean").fill_(7);
  m.net.load_state_dict(state);  // between steps: this is what a skip goes back to
  m.amp->backward(m.loss(1));
  m.net.parameters()[0].grad_slot().fill_(kInf);
  m.sgd->step();
  CHECK(m.net.state_dict().at("1.running_mean").to_vector() == Values{7, 7, 7});
}

void unscale_then_clip(Device device) {
  for (const DType dtype : {DType::f32, DType::f16}) {
    AmpRig rig(device, {0, 0}, {.lr = 1}, {.loss_scale = 1024});
    rig.sgd.set_clip({.norm = 1});
    rig.backward({3, 4});
    rig.model.w.grad_slot() = rig.model.w.grad_slot().to(dtype);
    CHECK(rig.model.w.grad().at(0) == 3072);
    rig.sgd.step();
    CHECK(rig.w()[0] == doctest::Approx(-0.6));
    CHECK(rig.w()[1] == doctest::Approx(-0.8));
    CHECK(rig.sgd.record().norm == doctest::Approx(5));
  }
  AmpRig rig(device, {0, 0}, {.lr = 1}, {.loss_scale = 1024});
  rig.sgd.set_clip({.value = 3.5});
  rig.step({3, -4});
  CHECK(rig.w() == Values{-3, 3.5});
}

void decay_after_unscaling(Device device) {
  AmpRig rig(device, {2}, {.lr = 1, .momentum = 0.9, .weight_decay = 5e-4}, {.loss_scale = 1024});
  rig.step({0.5});
  CHECK(rig.momentum() == doctest::Approx(0.501));
}

void gradient_accumulation(Device device) {
  AmpRig rig(device, {0}, {.lr = 1}, {.init_scale = 1024});
  rig.backward({0.25});
  rig.backward({0.25});
  CHECK(rig.model.w.grad().item() == 512);
  rig.sgd.step();
  CHECK(rig.w() == Values{-0.5});
  rig.sgd.zero_grad();
  for (const double g : {0.25, kInf, 0.25}) {
    const Tensor before = rig.model.w.grad();
    rig.backward({g});
    if (std::isinf(g)) rig.model.w.grad_slot().fill_(kInf);
  }
  rig.sgd.step();
  CHECK(rig.w() == Values{-0.5});
  CHECK(rig.amp.scale() == 512);
  CHECK(rig.amp.status().skipped_steps == 1);
}

void non_finite_is_found(Device device) {
  std::vector<Var> params;
  for (const int64_t n : {1, 3, 1000, 40001}) params.push_back(Var(Tensor::zeros({n}).to(device), true));
  OneParameter model(Tensor::zeros({1}).to(device));
  optim::Sgd sgd(params, {.lr = 1});
  amp::Amp amp = amp::initialize(model, sgd, {.init_scale = 0x1p24, .max_consecutive_skips = 1000});
  const auto step = [&](size_t bad, int64_t at, double value, DType dtype) {
    sgd.zero_grad();
    amp.backward(sum(params[0]));
    for (const Var& p : params) {
      Tensor g = Tensor::full(p.shape(), dtype == DType::f16 ? 6e4 : 3e38, dtype);
      if (&p == &params[bad]) g.rows(at, at + 1).fill_(value);
      p.grad_slot() = g.to(device);
    }
    sgd.step();
  };
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (size_t bad = 0; bad < params.size(); ++bad)
      for (const double value : {kInf, -kInf, kNaN})
        for (const int64_t at : {int64_t{0}, params[bad].value().numel() / 2, params[bad].value().numel() - 1}) {
          const int64_t skips = sgd.record().skips;
          step(bad, at, value, dtype);
          CHECK(sgd.record().skips == skips + 1);
          CHECK(sgd.record().last_bad == static_cast<int>(bad));
        }
  for (const Var& p : params) CHECK(p.value().to_vector() == Values(static_cast<size_t>(p.value().numel())));
  const int64_t skips = sgd.record().skips;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) step(0, 0, 3e4, dtype);  // large, and finite
  CHECK(sgd.record().skips == skips);
}

void calling_order(Device device) {
  AmpRig rig(device, {1}, {.lr = 1}, {});
  CHECK(contains(error_of([&] { rig.sgd.step(); }), "sgd: step() before any amp.backward(loss)"));
  rig.backward({1});
  CHECK(contains(error_of([&] { optim::clip_grad_norm_(rig.model.parameters(), 1); }), "set_clip"));
  CHECK(contains(error_of([&] { optim::clip_grad_value_(rig.model.parameters(), 1); }), "amp.unscale()"));
  rig.amp.unscale();
  CHECK(rig.model.w.grad().item() == 1);
  optim::clip_grad_value_(rig.model.parameters(), 0.5);  // gradients are the true ones now
  CHECK(contains(error_of([&] { rig.amp.unscale(); }), "call it once, between amp.backward(loss) and step()"));
  CHECK(contains(error_of([&] { rig.backward({1}); }), "unscale() was called in this step"));
  rig.sgd.step();
  CHECK(rig.w() == Values{0.5});
  CHECK(contains(error_of([&] { rig.sgd.step(); }), "sgd: step() twice after one amp.backward(loss)"));
  CHECK(contains(error_of([&] { rig.amp.unscale(); }), "the gradients are not scaled"));
  rig.backward({1});
  rig.sgd.zero_grad();
  CHECK(contains(error_of([&] { rig.sgd.step(); }), "or after zero_grad()"));
  CHECK(rig.w() == Values{0.5});
  CHECK(contains(error_of([&] { rig.amp.load_state_dict({}); }), "the state is empty"));
  CHECK(contains(error_of([&] { rig.amp.backward(sum(rig.model.w), 1); }), "there is no loss 1; num_losses is 1"));
}

void unscaled_overflow(Device device) {
  AmpRig rig(device, {1}, {.lr = 1}, {.init_scale = 4});
  rig.backward({kNaN});
  rig.amp.unscale();
  rig.sgd.step();
  CHECK(rig.w() == Values{1});
  CHECK(rig.amp.scale() == 2);
}
}  // namespace

HT_ON_DEVICES("amp example 9: growth and backoff", growth_and_backoff)
HT_ON_DEVICES("amp example 10: the counter resets on overflow", counter_resets)
HT_ON_DEVICES("amp example 11: the scale has a floor and a cap", scale_bounds)
HT_ON_DEVICES("amp example 12: a skip is total", skip_is_total)
HT_ON_DEVICES("amp example 12: the very first step skipped", first_step_skipped)
HT_ON_DEVICES("amp example 13: batch norm under overflow", statistics_under_overflow)
HT_ON_DEVICES("amp example 13: statistics loaded between steps", loaded_statistics)
HT_ON_DEVICES("amp example 15: unscale, then clip", unscale_then_clip)
HT_ON_DEVICES("amp example 16: decay after unscaling", decay_after_unscaling)
HT_ON_DEVICES("amp example 17: accumulation", gradient_accumulation)
HT_ON_DEVICES("amp example 18: any non-finite gradient is found", non_finite_is_found)
HT_ON_DEVICES("amp example 21: calling order", calling_order)
HT_ON_DEVICES("amp example 21: an overflow seen by unscale", unscaled_overflow)
