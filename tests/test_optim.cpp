// What all optimizers share: half gradients, groups, schedules, state, errors, thread counts.
#include <doctest/doctest.h>

#include "core/parallel.h"
#include "optim/adamw.h"
#include "tests/optim_helpers.h"

using namespace ht;
using namespace ht::optim;

TEST_CASE("optimizer: a half gradient is computed in FP32") {
  // The script's gradients are exact in f16, so the parameters must not notice.
  const Var a = start(DType::f32), b = start(DType::f32), c = start(DType::f32), d = start(DType::f32);
  const SgdOptions o{.lr = 0.05, .momentum = 0.9, .nesterov = true, .weight_decay = 5e-4};
  Sgd sa({a}, o), sb({b}, o);
  train(sa, a, DType::f32);
  train(sb, b, DType::f16);
  CHECK(same_bits(a.value(), b.value()));
  AdamW ac({c}), ad({d});
  train(ac, c, DType::f32);
  train(ad, d, DType::bf16);
  CHECK(same_bits(c.value(), d.value()));  // 48 / 64 needs 6 bits: exact in bf16 too

  // An FP32 gradient for an f64 parameter and for a half one, whose state is FP32.
  const Var e = start(DType::f64), h = start(DType::bf16);
  Sgd se({e}, o), sh({h}, o);
  train(se, e, DType::f32);
  check_close(e, {-1.3338320891670585, 0.31438106185396131, -1.5975450455367171, 0.77857598122079741}, 1e-14);
  train(sh, h, DType::f32);
  CHECK(h.dtype() == DType::bf16);
  CHECK(sh.state_dict().at("0.momentum_buffer").dtype() == DType::f32);
  check_close(h, {-1.3338320891670585, 0.31438106185396131, -1.5975450455367171, 0.77857598122079741}, 20 * 0x1p-9);
}

TEST_CASE("optimizer: groups have their own options and rates") {
  const Var w = parameter({1}), b = parameter({1}), g = parameter({1});
  Sgd sgd({{{w}, {.lr = 0.5, .weight_decay = 1}}, {{b}, {.lr = 0.25}}, {{g}, {.lr = 0.125, .momentum = 0.5}}});
  CHECK(sgd.group_count() == 3);
  CHECK(sgd.params(1).front().state() == b.state());
  CHECK(sgd.options(2).momentum == 0.5);
  for (const Var& p : {w, b, g}) set_grad(p, {1});
  sgd.step();
  CHECK(w.item() == 0);      // 1 - 0.5 * (1 + 1)
  CHECK(b.item() == 0.75);   // 1 - 0.25
  CHECK(g.item() == 0.875);  // 1 - 0.125
  sgd.set_lr(2, 1);
  CHECK(sgd.lr(0) == 0.5);
  CHECK(sgd.lr(1) == 2);
  CHECK(sgd.options(1).lr == 2);
  sgd.set_lr(0.0);
  sgd.step();
  CHECK(b.item() == 0.75);
  CHECK(sgd.lr(2) == 0);
}

TEST_CASE("optimizer: a parameter without a gradient is left alone") {
  const Var a = parameter({1}), b = parameter({1}), empty = Var(Tensor::empty({0, 3}), true);
  Sgd sgd({a, b, empty}, {.lr = 0.5, .momentum = 0.5, .dampening = 0.5, .weight_decay = 1});
  empty.grad_slot() = Tensor::empty({0, 3});
  set_grad(a, {1});
  const uint64_t version_a = a.value().version(), version_b = b.value().version();
  sgd.step();
  CHECK(a.value().version() > version_a);
  CHECK(b.value().version() == version_b);
  CHECK(a.item() == 0);
  CHECK(b.item() == 1);
  CHECK(sgd.state_dict().at("1.step").item() == 0);
  CHECK(sgd.state_dict().at("1.momentum_buffer").item() == 0);
  // Its own first update comes later, undampened.
  set_grad(b, {1});
  sgd.step();
  CHECK(b.item() == 0);
  CHECK(sgd.applied_steps() == 2);
  sgd.zero_grad();
  CHECK(!a.grad().defined());
  sgd.step();
  CHECK(b.item() == 0);
}

TEST_CASE("optimizer: a schedule is indexed by applied steps and replaced by set_lr") {
  const Var p = start(DType::f32);
  Sgd sgd({p}, {.lr = 0.1, .momentum = 0.9});
  sgd.set_schedule(cosine_lr(20), 20);
  CHECK(sgd.lr() == 0.1);
  train(sgd, p, DType::f32);  // PyTorch: CosineAnnealingLR(optimizer, 20)
  check_close(p, {-1.2683624029159546, 0.27406871318817139, -1.4621708393096924, 0.43371859192848206}, 1e-6);
  CHECK(sgd.applied_steps() == 20);
  CHECK(sgd.lr() == doctest::Approx(0));
  sgd.set_lr(0.25);
  CHECK(sgd.lr() == 0.25);
  sgd.set_schedule(step_lr(10, 0.5), 30);
  CHECK(sgd.lr() == 0.25 * 0.25);  // step 20 of the new one
  train(sgd, p, DType::f32, 0, 15);
  CHECK(sgd.lr() == 0.25 * 0.125);  // 35 is past the end: the last value stays

  Sgd two({{{parameter({1})}, {.lr = 1}}, {{parameter({1})}, {.lr = 64}}});
  two.set_schedule(warmup(4), 10);
  CHECK(two.lr(0) == 0.25);
  CHECK(two.lr(1) == 16);
}

TEST_CASE("optimizer: save and load equals going on, bit for bit") {
  const auto check_resume = [](auto make) {
    const Var whole = start(DType::f32), first = start(DType::f32);
    auto uninterrupted = make(whole);
    train(*uninterrupted, whole, DType::f16);
    auto before = make(first);
    train(*before, first, DType::f16, 0, 7);
    const StateDict state = before->state_dict();
    const Var second(first.value().clone(), true);
    train(*before, first, DType::f16, 7, 9);  // the saved state is a copy
    auto after = make(second);
    after->load_state_dict(state);
    CHECK(after->applied_steps() == 7);
    train(*after, second, DType::f16, 7, 20);
    CHECK(same_bits(whole.value(), second.value()));
    const StateDict a = uninterrupted->state_dict(), b = after->state_dict();
    REQUIRE(a.size() == b.size());
    for (const auto& [key, tensor] : a) CHECK_MESSAGE(same_bits(tensor, b.at(key)), key);
  };
  check_resume([](const Var& p) {
    auto o = std::make_unique<Sgd>(std::vector{p}, SgdOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.2});
    o->set_schedule(one_cycle_lr(20), 20);
    return o;
  });
  check_resume([](const Var& p) {
    auto o = std::make_unique<AdamW>(std::vector{p}, AdamWOptions{.lr = 0.01});
    o->set_schedule(warmup(9, cosine_lr(20)), 20);
    return o;
  });
}

TEST_CASE("optimizer: state keys are the parameters' names, or numbers") {
  const Var a = parameter({1}), b = parameter({1, 2});
  a.state()->name = "features.0.weight";
  CHECK(Sgd({a, b}, {.momentum = 0.9}).state_dict().count("1.momentum_buffer") == 1);
  b.state()->name = "features.0.bias";
  const StateDict state = AdamW({a, b}).state_dict();
  CHECK(state.size() == 7);
  CHECK(state.at("features.0.bias.exp_avg_sq").shape() == Shape{2});
  CHECK(state.at("features.0.weight.step").item() == 0);
  b.state()->name = "features.0.weight";
  CHECK(AdamW({a, b}).state_dict().count("0.exp_avg") == 1);
  CHECK(Sgd({a}, {}).state_dict().size() == 2);
}

TEST_CASE("optimizer: a state that does not fit changes nothing") {
  const Var p = start(DType::f32);
  Sgd sgd({p}, {.lr = 0.1, .momentum = 0.9});
  train(sgd, p, DType::f32, 0, 3);
  const StateDict good = sgd.state_dict();
  const auto rejected = [&](StateDict state, std::string_view text) {
    const std::string error = error_of([&] { sgd.load_state_dict(state); });
    INFO(error);
    CHECK(contains(error, text));
    CHECK(contains(error, "nothing was loaded"));
    for (const auto& [key, tensor] : sgd.state_dict()) CHECK(same_bits(tensor, good.at(key)));
  };
  rejected({}, "sgd: load_state_dict: 3 missing [applied_steps, 0.step, 0.momentum_buffer], 0 unexpected []");
  const auto with = [&](const std::string& key, const Tensor& t) {
    StateDict state = good;
    state["applied_steps"] = Tensor::full({}, 99, DType::i64);
    state[key] = t;
    return state;
  };
  rejected(with("0.momentum_buffer", Tensor::zeros({4})),
           "1 mismatched [0.momentum_buffer (file [4] f32 cpu, optimizer [5] f32 cpu)]");
  rejected(with("0.momentum_buffer", Tensor::zeros({5}, DType::f16)), "(file [5] f16 cpu, optimizer [5] f32 cpu)");
  rejected(with("0.momentum_buffer", Tensor()), "1 mismatched");
  rejected(with("1.momentum_buffer", Tensor::zeros({5})), "1 unexpected [1.momentum_buffer]");
  rejected(with("0.step", Tensor::full({}, -1, DType::i64)), "0.step (-1 steps)");
  rejected(AdamW({p}).state_dict(), "2 unexpected [0.exp_avg, 0.exp_avg_sq]");
}

TEST_CASE("optimizer: parameters that cannot be trained are errors") {
  const Var p = parameter({1, 2});
  CHECK(contains(error_of([] { Sgd(std::vector<Var>{}, {}); }), "sgd: there are no parameters"));
  CHECK(contains(error_of([&] { Sgd({p, Var()}, {}); }), "sgd: parameter 1 of group 0 is undefined"));
  CHECK(contains(
      error_of([&] {
        Sgd({p, p}, {});
      }),
      "sgd: parameter 1 of group 0 is listed twice; each parameter may be in one group, once (p [2] f32 cpu)"));
  CHECK(contains(error_of([&] { Sgd({{{p}, {}}, {{p}, {}}}); }), "parameter 0 of group 1 is listed twice"));
  CHECK(contains(error_of([&] { AdamW({Var(Tensor::zeros({3}))}); }),
                 "adamw: parameter 0 of group 0 does not require a gradient"));
  struct Twice final : Op {
    const OpInfo& info() const override {
      static const OpInfo i{"twice", AmpTag::leave, "", nullptr};
      return i;
    }
    TensorSpec infer(Inputs in) const override { return in[0].spec(); }
    Tensor forward(Context&, Inputs in, const TensorSpec&) override { return in[0].clone(); }
    Grads backward(Context&, const Tensor& dy, const std::vector<bool>&) override { return {dy}; }
  };
  CHECK(contains(error_of([&] { Sgd({apply(Twice{}, {p})}, {}); }), "is a result of ops, not a leaf"));
}

TEST_CASE("optimizer: a gradient or parameter that does not fit is an error before any change") {
  const Var a = parameter({1}), b = parameter({1, 2});
  Sgd sgd({a, b}, {.momentum = 0.9});
  set_grad(a, {1});
  b.grad_slot() = Tensor::zeros({3});
  CHECK(error_of([&] { sgd.step(); }) == "sgd: the gradient of 1 does not fit (param [2] f32 cpu, grad [3] f32 cpu)");
  CHECK(a.item() == 1);
  CHECK(sgd.applied_steps() == 0);
  set_grad(b, {1, 1});
  b.set_value(b.value().to(DType::f64));
  CHECK(contains(error_of([&] { sgd.step(); }), "1 has changed its shape or dtype since the optimizer was made"));
  CHECK(a.item() == 1);
  b.set_value(b.value().to(DType::f16));  // its FP32 state still fits
  sgd.step();
  CHECK(b.value().at(1) == doctest::Approx(1.99).epsilon(1e-3));
}

TEST_CASE("optimizer: hyperparameters are checked by name and value") {
  const Var p = parameter({1});
  const auto sgd = [&](SgdOptions o) { return error_of([&] { Sgd({p}, o); }); };
  CHECK(sgd({.lr = -0.1}) == "sgd: lr is -0.1 in group 0; it must be finite and at least 0");
  CHECK(contains(sgd({.lr = kNaN}), "sgd: lr is nan"));
  CHECK(contains(sgd({.lr = kInf}), "sgd: lr is inf"));
  CHECK(contains(sgd({.momentum = -1}), "sgd: momentum is -1"));
  CHECK(contains(sgd({.momentum = kNaN}), "sgd: momentum is nan"));
  CHECK(contains(sgd({.dampening = kNaN}), "sgd: dampening is nan"));
  CHECK(contains(sgd({.weight_decay = -5e-4}), "sgd: weight_decay is -0.0005"));
  CHECK(sgd({.nesterov = true}) ==
        "sgd: nesterov needs momentum above 0 and dampening 0, given momentum 0 and dampening 0 in group 0");
  CHECK(contains(sgd({.momentum = 0.9, .dampening = 0.1, .nesterov = true}), "given momentum 0.9 and dampening 0.1"));
  CHECK(contains(error_of([&] { Sgd({{{p}, {}}, {{parameter({1})}, {.lr = -1}}}); }), "lr is -1 in group 1"));
  const auto adamw = [&](AdamWOptions o) { return error_of([&] { AdamW({p}, o); }); };
  CHECK(contains(adamw({.lr = -1}), "adamw: lr is -1"));
  CHECK(adamw({.beta1 = 1}) == "adamw: beta1 is 1 in group 0; it must be at least 0 and below 1");
  CHECK(contains(adamw({.beta2 = kNaN}), "adamw: beta2 is nan"));
  CHECK(contains(adamw({.eps = -1}), "adamw: eps is -1"));
  CHECK(contains(adamw({.weight_decay = kNaN}), "adamw: weight_decay is nan"));

  Sgd ok({p}, {.lr = 0.5});
  CHECK(contains(error_of([&] { ok.set_lr(kNaN); }), "sgd: lr is nan"));
  CHECK(contains(error_of([&] { ok.set_lr(1, 3); }), "sgd: there is no group 3; the optimizer has 1"));
  CHECK(contains(error_of([&] { ok.lr(1); }), "there is no group 1"));
  CHECK(contains(error_of([&] { ok.options(1); }), "there is no group 1"));
  CHECK(contains(error_of([&] { ok.set_schedule(cosine_lr(5), 0); }), "total_steps is 0"));
  CHECK(contains(error_of([&] { ok.set_schedule({}, 5); }), "the schedule has no factor"));
  CHECK(error_of([&] {
          ok.set_schedule({"mine", [](int64_t t) { return t < 3 ? 1.0 : kNaN; }}, 5);
        }) == "sgd: schedule 'mine' gives nan at step 3; a factor must be finite and at least 0");
  CHECK(ok.lr() == 0.5);
}

TEST_CASE("optimizer: one and two threads give the same bits") {
  const int threads = num_threads();
  const auto run = [](int n, DType param, DType grad, bool adamw) {
    set_num_threads(n);
    const Var p(Tensor::normal({100'003}, {1, 0}, 0, 1, param), true);
    std::unique_ptr<Optimizer> optimizer;
    if (adamw)
      optimizer = std::make_unique<AdamW>(std::vector{p});
    else
      optimizer = std::make_unique<Sgd>(std::vector{p},
                                        SgdOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true, .weight_decay = 5e-4});
    for (uint64_t t = 0; t < 3; ++t) {
      p.grad_slot() = Tensor::normal({100'003}, {2, t}, 0, 1, grad);
      clip_grad_norm_(std::vector{p}, 50);
      optimizer->step();
    }
    return p.value();
  };
  for (const bool adamw : {false, true})
    for (const auto& [param, grad] : {std::pair(DType::f32, DType::f32), std::pair(DType::f32, DType::f16),
                                      std::pair(DType::f64, DType::f64), std::pair(DType::bf16, DType::bf16)}) {
      INFO(param, " ", grad, " ", adamw);
      CHECK(same_bits(run(1, param, grad, adamw), run(2, param, grad, adamw)));
    }
  set_num_threads(threads);
}
