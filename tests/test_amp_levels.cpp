// Levels and options of amp: what each makes of a model, contradictions, several losses, state, lifetimes.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "models/layers.h"
#include "models/sequential.h"
#include "ops/ops.h"
#include "optim/adamw.h"
#include "tests/amp_rig.h"
#include "tests/error_of.h"
#include "tests/on_devices.h"

using namespace ht;
using amp::Options;

namespace {
using Values = std::vector<double>;

nn::Sequential network() {
  manual_seed(4);
  return small_network();
}

Var images(Device device, uint64_t stream = 0) { return Tensor::normal({6, 4, 4, 3}, {9, stream}).to(device); }
Var labels(Device device) { return Tensor::from({0, 1, 2, 0, 1, 2}, {6}, DType::i64).to(device); }

std::string error_with(const Options& options) {
  return error_of([&] { amp::resolve(options); });
}

// Weight dtypes, masters, the type of the output, and that training goes down as FP32's does.
void levels(Device device) {
  struct Case {
    Options options;
    DType weight, gamma, output;
    bool master;
    double scale;
  };
  const DType f16 = DType::f16, f32 = DType::f32, bf16 = DType::bf16;
  const Case cases[] = {{{.level = amp::O0}, f32, f32, f32, false, 1},
                        {{.level = amp::O1}, f32, f32, f16, false, 65536},
                        {{.level = amp::O2}, f16, f32, f32, true, 65536},
                        {{.level = amp::O3}, f16, f16, f32, false, 1},
                        {{.level = amp::fp16}, f16, f32, f32, true, 128},
                        {{.level = amp::bf16}, f32, f32, bf16, false, 1},
                        {{.level = amp::O2, .dtype = bf16}, bf16, f32, f32, true, 1},
                        {{.level = amp::O2, .cast_model_outputs = false}, f16, f32, f16, true, 65536},
                        {{.level = amp::O3, .keep_batchnorm_fp32 = true}, f16, f32, f32, false, 1},
                        {{.level = amp::O1, .loss_scale = 128}, f32, f32, f16, false, 128},
                        {{.level = amp::bf16, .loss_scale = amp::dynamic}, f32, f32, bf16, false, 65536}};
  double fp32_loss = 0;
  for (const Case& c : cases) {
    INFO(name_of(c.options.level));
    nn::Sequential net = network();
    net.to(device);
    optim::Sgd sgd(net.parameters(), {.lr = 0.05, .momentum = 0.9});
    amp::Amp amp = amp::initialize(net, sgd, c.options);
    const auto params = net.named_parameters();
    CHECK(params[0].second.dtype() == c.weight);
    CHECK(params[2].second.dtype() == c.gamma);
    CHECK((params[0].second.master().dtype() == f32) == (c.master || c.weight == f32));
    CHECK(amp.scale() == c.scale);
    double loss = 0;
    for (uint64_t i = 0; i < 20; ++i) {
      sgd.zero_grad();
      const Var y = net(images(device));
      CHECK(y.dtype() == c.output);
      const Var l = cast(cross_entropy(y, labels(device)), f32);
      if (c.output == f16 && c.weight == f16) {  // FP16 loss: refused under a dynamic scale
        CHECK(contains(error_of([&] { amp.backward(cross_entropy(y, labels(device))); }), "does not fit an f16 loss"));
        continue;
      }
      amp.backward(l);
      sgd.step();
      loss = l.item();
    }
    if (c.options.level == amp::O0) fp32_loss = loss;
    if (loss != 0) CHECK(loss == doctest::Approx(fp32_loss).epsilon(0.15));
    for (const auto& [name, t] : net.state_dict()) CHECK(t.dtype() == (name.ends_with("tracked") ? DType::i64 : f32));
  }
}

// A master keeps what a half weight loses, through save and load.
void masters_are_saved(Device device) {
  const auto make = [&](nn::Sequential& net) {
    net.to(device);
    return std::make_unique<optim::AdamW>(net.parameters(), optim::AdamWOptions{.lr = 1e-3});
  };
  const auto train = [&](nn::Sequential& net, optim::Optimizer& optimizer, amp::Amp& amp, uint64_t from, uint64_t to) {
    for (uint64_t i = from; i < to; ++i) {
      optimizer.zero_grad();
      amp.backward(cross_entropy(net(images(device, i)), labels(device)));
      optimizer.step();
    }
  };
  set_deterministic(true);
  nn::Sequential a = network(), b = network();
  const auto oa = make(a), ob = make(b);
  amp::Amp aa = amp::initialize(a, *oa, {.level = amp::O2});
  train(a, *oa, aa, 0, 5);
  const Var w = a.parameters()[0];
  CHECK(w.value().to_vector() != w.master().to_vector());
  CHECK(w.value().to_vector() == w.master().to(DType::f16).to_vector());  // written together
  amp::Amp ab = amp::initialize(b, *ob, {.level = amp::O2});
  b.load_state_dict(a.state_dict());
  ob->load_state_dict(oa->state_dict());
  ab.load_state_dict(aa.state_dict());
  train(a, *oa, aa, 5, 8);
  train(b, *ob, ab, 5, 8);
  set_deterministic(false);
  for (const auto& [name, t] : a.state_dict()) CHECK_MESSAGE(bits_of(t) == bits_of(b.state_dict().at(name)), name);
}

// Two losses, a scaler each: unscaled gradients add up, any flag skips, each scale moves by its own flag.
void several_losses(Device device) {
  AmpRig rig(device, {0}, {.lr = 1}, {.num_losses = 2, .init_scale = 8, .growth_interval = 2});
  rig.backward({0.25}, DType::f32, 0);
  rig.backward({0.5}, DType::f32, 1);
  CHECK(rig.model.w.grad().item() == 0.75);
  rig.sgd.step();
  CHECK(rig.w() == Values{-0.75});
  rig.sgd.zero_grad();
  rig.backward({1}, DType::f32, 0);
  rig.backward({kInf}, DType::f32, 1);
  rig.sgd.step();
  CHECK(rig.w() == Values{-0.75});
  CHECK(rig.amp.scale(0) == 16);  // two good steps of its own
  CHECK(rig.amp.scale(1) == 4);
  rig.sgd.zero_grad();
  rig.backward({1}, DType::f32, 1);  // only one of them: the other does not move
  rig.sgd.step();
  CHECK(rig.w() == Values{-1.75});
  CHECK(rig.amp.status(0).growth_tracker == 0);
  CHECK(rig.amp.status(1).growth_tracker == 1);
  CHECK(contains(error_of([&] { rig.amp.unscale(); }), "has unscaled them already"));
}

// Two optimizers of one loss commit together or not at all.
void several_optimizers(Device device) {
  OneParameter a(Tensor::full({1}, 1).to(device)), b(Tensor::full({1}, 2).to(device));
  optim::Sgd sa(a.parameters(), {.lr = 1}), sb(b.parameters(), {.lr = 1});
  amp::Amp amp = amp::initialize({&a, &b}, {&sa, &sb}, {.init_scale = 4});
  const auto step = [&](double bad) {
    sa.zero_grad();
    sb.zero_grad();
    const Var loss = sum(add(a.w, b.w));
    if (bad == 0) {
      amp.backward(loss);
    } else {  // sqrt's gradient at 0 times 0
      amp.backward(add(loss, scale(sum(sqrt(scale(b.w, 0))), 0)));
    }
    sa.step();
    sb.step();
  };
  step(0);
  CHECK(a.w.item() == 0);
  CHECK(b.w.item() == 1);
  step(1);
  CHECK(a.w.item() == 0);  // its own gradient was finite
  CHECK(b.w.item() == 1);
  CHECK(amp.scale() == 2);
  CHECK(amp.status(0, 0).skipped_steps == 1);
  CHECK(amp.status(0, 1).skipped_steps == 1);
  CHECK(amp.status(0, 1).last_skip == "the gradient of w was not finite at loss scale 4");
  CHECK(contains(error_of([&] { sb.step(); }), "sgd: step() twice"));
  step(0);
  CHECK(a.w.item() == -1);
  CHECK(b.w.item() == 0);
}

// A loss that is not finite skips, and leaves the scale and its counter alone.
void bad_loss(Device device) {
  AmpRig rig(device, {1}, {.lr = 1}, {.init_scale = 4, .growth_interval = 3, .max_consecutive_skips = 3});
  rig.step({0.25});
  CHECK(rig.w() == Values{0.75});
  const Var inf = Tensor::full({1}, kInf).to(device);
  for (int i = 0; i < 2; ++i) {
    rig.sgd.zero_grad();
    rig.amp.backward(sum(mul(rig.model.w, inf)));
    rig.sgd.step();
    CHECK(rig.w() == Values{0.75});
    CHECK(rig.amp.status().growth_tracker == 1);
    CHECK(rig.amp.scale() == 4);
    CHECK(rig.amp.status().last_skip == "the loss was not finite");
  }
  rig.sgd.zero_grad();
  rig.amp.backward(sum(mul(rig.model.w, inf)));
  rig.sgd.step();
  const std::string error = error_of([&] { rig.amp.scale(); });
  CHECK_MESSAGE(contains(error,
                         "sgd: 3 steps in a row were skipped; the last because the loss was not finite: the model "
                         "diverges"),
                error);
  CHECK(error_of([&] { rig.sgd.applied_steps(); }) == error);
  AmpRig other(device, {1}, {.lr = 1}, {.init_scale = 4, .max_consecutive_skips = 1});
  other.step({kNaN});
  CHECK(contains(error_of([&] { other.sgd.lr(); }),
                 "the last because the gradient of w was not finite at loss scale 4, with a finite loss"));
}
}  // namespace

HT_ON_DEVICES("amp: what each level makes of a model", levels)
HT_ON_DEVICES("amp: O2 saves and resumes its masters", masters_are_saved)
HT_ON_DEVICES("amp: several losses with a scaler each", several_losses)
HT_ON_DEVICES("amp: several optimizers commit together", several_optimizers)
HT_ON_DEVICES("amp: a loss that is not finite", bad_loss)

TEST_CASE("amp: contradictions name both options; numbers are checked") {
  CHECK(error_with({.level = amp::O1, .keep_batchnorm_fp32 = true}) ==
        "amp: keep_batchnorm_fp32 (all weights are FP32) contradicts level O1");
  CHECK(contains(error_with({.level = amp::O1, .master_weights = true}), "master_weights"));
  CHECK(contains(error_with({.level = amp::bf16, .cast_model_outputs = true}), "cast_model_outputs"));
  CHECK(contains(error_with({.level = amp::O0, .dtype = DType::f16}), "dtype f16 contradicts level O0"));
  CHECK(contains(error_with({.level = amp::O0, .loss_scale = 8}), "loss_scale contradicts level O0"));
  CHECK(contains(error_with({.level = amp::fp16, .dtype = DType::bf16}), "dtype bf16 contradicts level fp16"));
  CHECK(contains(error_with({.level = amp::bf16, .dtype = DType::f16}), "dtype f16 contradicts level bf16"));
  CHECK(contains(error_with({.level = amp::O2, .overrides = {{"relu", AmpTag::deny}}}), "overrides"));
  CHECK(contains(error_with({.level = amp::O3, .policy_file = "x.json"}), "policy_file"));
  CHECK(contains(error_with({.dtype = DType::f32}), "dtype f32 is not half"));
  CHECK(contains(error_with({.init_scale = 0.5}), "init_scale 0.5 is outside min_loss_scale 1"));
  CHECK(contains(error_with({.min_loss_scale = 4, .max_loss_scale = 2}), "min_loss_scale 4 is above max_loss_scale 2"));
  CHECK(contains(error_with({.growth_factor = 1}), "growth_factor is 1"));
  CHECK(contains(error_with({.backoff_factor = 1}), "backoff_factor is 1"));
  CHECK(contains(error_with({.growth_interval = 0}), "growth_interval is 0"));
  CHECK(contains(error_with({.num_losses = 0}), "num_losses is 0"));
  CHECK(contains(error_with({.loss_scale = -1}), "loss_scale is -1"));
  CHECK(contains(error_with({.overrides = {{"lineer", AmpTag::deny}}}), "Did you mean linear"));
  CHECK(amp::parse_level("O2") == amp::O2);
  CHECK(contains(error_of([] { amp::parse_level("O4"); }), "'O4' is unknown; use O0, O1"));
  CHECK(amp::parse_loss_scale("dynamic").is_dynamic());
  CHECK(amp::parse_loss_scale("128").value == 128);
  CHECK(contains(error_of([] { amp::parse_loss_scale("big"); }), "neither 'dynamic' nor a positive number"));
  CHECK(contains(error_of([] { amp::parse_loss_scale("0"); }), "neither"));
}

TEST_CASE("amp: overrides and the policy file reach the ops") {
  nn::Linear layer(2, 2);
  optim::Sgd sgd(layer.parameters());
  amp::Amp amp = amp::initialize(layer, sgd, {.overrides = {{"linear", AmpTag::deny, "a test"}}});
  CHECK(layer(Tensor::full({1, 2}, 1)).dtype() == DType::f32);
  CHECK(amp.policy().rule(find_op("linear")).reason == "a test");
}

TEST_CASE("amp: it ends with its Amp; a model is made half once; an optimizer has one Amp") {
  nn::Linear layer(2, 2);
  optim::Sgd sgd(layer.parameters());
  const Var x = Tensor::full({1, 2}, 1);
  {
    amp::Amp amp = amp::initialize(layer, sgd);
    amp::Amp moved = std::move(amp);
    CHECK(layer(x).dtype() == DType::f16);
    CHECK(contains(error_of([&] { amp::initialize(layer, sgd); }), "another Amp steps this optimizer"));
    CHECK(layer(x).dtype() == DType::f16);
  }
  CHECK(layer(x).dtype() == DType::f32);
  sum(layer(x)).backward();
  sgd.step();  // as without amp
  CHECK(sgd.applied_steps() == 1);
  amp::Amp again = amp::initialize(layer, sgd, {.level = amp::O2});
  CHECK(contains(error_of([&] { amp::initialize(layer, sgd); }), "expects FP32 parameters, but weight is not"));
  auto late = std::make_unique<optim::Sgd>(nn::Linear(1, 1).parameters());
  nn::Linear other(1, 1);
  amp::Amp outlives = amp::initialize(other, *late);
  late.reset();  // an Amp may outlive its optimizer
  CHECK(outlives.status().applied_steps == 0);
}

TEST_CASE("amp: state_dict names its values; a state that does not fit changes nothing") {
  AmpRig rig(Device::cpu(), {1}, {.lr = 1}, {.init_scale = 8});
  rig.step({kInf});
  rig.step({1});
  StateDict state = rig.amp.state_dict();
  CHECK(state.size() == 4);
  CHECK(state.at("loss_scaler.0.scale").item() == 4);
  CHECK(state.at("loss_scaler.0.growth_tracker").item() == 1);
  CHECK(state.at("optimizer.0.skipped_steps").item() == 1);
  CHECK(state.at("optimizer.0.consecutive_skips").item() == 0);
  StateDict bad = state;
  bad["loss_scaler.0.scale"] = Tensor::full({}, kNaN);
  bad.erase("optimizer.0.skipped_steps");
  bad["loss_scaler.1.scale"] = Tensor::full({}, 1);
  const std::string error = error_of([&] { rig.amp.load_state_dict(bad); });
  CHECK_MESSAGE(contains(error,
                         "1 missing [optimizer.0.skipped_steps], 1 unexpected [loss_scaler.1.scale], 1 mismatched "
                         "[loss_scaler.0.scale]; nothing was loaded"),
                error);
  AmpRig other(Device::cpu(), {1}, {.lr = 1}, {.init_scale = 8});
  other.amp.load_state_dict(state);
  CHECK(other.amp.scale() == 4);
  CHECK(other.amp.status().growth_tracker == 1);
  CHECK(other.amp.status().skipped_steps == 1);
}

TEST_CASE("amp: two lines turn the FP32 example into mixed precision") {
  const auto lines_of = [](const char* path) {
    std::ifstream in(std::string(HT_SOURCE_DIR "/examples/") + path);
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  };
  const auto a = lines_of("linear_regression.cpp"), b = lines_of("linear_regression_amp.cpp");
  REQUIRE(a.size() > 10);
  std::vector<std::vector<size_t>> common(a.size() + 1, std::vector<size_t>(b.size() + 1));  // longest subsequence
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < b.size(); ++j)
      common[i + 1][j + 1] = a[i] == b[j] ? common[i][j] + 1 : std::max(common[i][j + 1], common[i + 1][j]);
  CHECK(b.size() - common.back().back() == 2);  // one added, one changed
  CHECK(a.size() - common.back().back() == 1);
}
