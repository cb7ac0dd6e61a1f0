// Gradients that are large enough to be looked at during backward: the verdict is that of the gradients which the step
// finds, whatever became of them in between.
#include <doctest/doctest.h>

#include "core/captured_step.h"
#include "ops/ops.h"
#include "optim/early_check.h"
#include "tests/amp_rig.h"
#include "tests/on_devices.h"

using namespace ht;

namespace {
constexpr int64_t kLarge = optim::EarlyCheck::kLeast;

struct Rig {
  explicit Rig(Device device)
      : model(Tensor::full({kLarge}, 1, DType::f32, device)),
        sgd(model.parameters(), {.lr = 1}),
        amp(amp::initialize(model, sgd, {.init_scale = 1024})),
        good(Tensor::full({kLarge}, 0.25, DType::f32, device)),
        bad(good.clone()) {
    bad.rows(kLarge - 5, kLarge - 4).fill_(1e37);
  }

  // The gradient is 1 / 4, or where `infinite` at one place 1e37, which the loss scale makes infinite.
  void backward(bool infinite) { amp.backward(sum(mul(infinite ? bad : good, model.w))); }
  // Whether the step was applied.
  bool step() {
    const int64_t before = amp.status().applied_steps;
    sgd.step();
    return amp.status().applied_steps == before + 1;
  }
  double w() const { return model.w.value().to_vector()[7]; }

  OneParameter model;
  optim::Sgd sgd;
  amp::Amp amp;
  Tensor good, bad;
};

void verdicts(Device device) {
  Rig rig(device);
  rig.backward(false);
  CHECK(rig.step());
  CHECK(rig.w() == 0.75);

  rig.sgd.zero_grad();
  rig.backward(true);
  CHECK(!rig.step());
  CHECK(rig.w() == 0.75);
  CHECK(rig.amp.status().last_skip.find("gradient of w") != std::string::npos);

  rig.sgd.zero_grad();
  rig.backward(false);
  rig.backward(true);  // added to what was finite
  CHECK(!rig.step());

  rig.sgd.zero_grad();
  rig.backward(true);
  rig.sgd.zero_grad();
  rig.backward(false);
  CHECK(rig.step());
  CHECK(rig.w() == 0.5);

  rig.sgd.zero_grad();
  rig.backward(true);
  rig.model.w.zero_grad();  // without the optimizer's knowledge
  rig.backward(false);
  CHECK(rig.step());
  CHECK(rig.w() == 0.25);

  rig.sgd.zero_grad();
  rig.backward(true);
  rig.model.w.grad_slot().fill_(0);  // mended by hand
  CHECK(rig.step());
  CHECK(rig.w() == 0.25);

  rig.sgd.zero_grad();
  rig.backward(false);
  rig.model.w.grad_slot().fill_(INFINITY);  // or broken
  CHECK(!rig.step());

  rig.sgd.set_clip({.norm = 1e9});  // which reads all gradients in the step
  rig.sgd.zero_grad();
  rig.backward(true);
  CHECK(!rig.step());
  rig.sgd.zero_grad();
  rig.backward(false);
  CHECK(rig.step());
  CHECK(rig.w() == 0);
}

// A recorded step does not know what became of gradients outside it.
void dropped_before_replay(Device device) {
  Rig rig(device);
  CapturedStep step(device, [&](std::span<const Tensor>) {
    rig.sgd.zero_grad();
    rig.backward(false);
    rig.sgd.step();
  });
  for (int i = 0; i < 3; ++i) step({});
  CHECK(rig.amp.status().applied_steps == 3);
  rig.sgd.zero_grad();
  rig.backward(true);
  rig.sgd.zero_grad();
  for (int i = 0; i < 2; ++i) step({});
  CHECK(rig.amp.status().applied_steps == 5);
  CHECK(rig.amp.status().skipped_steps == 0);
  CHECK(rig.w() == 1 - 5 * 0.25);
}
}  // namespace

HT_ON_DEVICES("amp: the verdict on large gradients", verdicts)
HT_ON_DEVICES("amp: large gradients dropped between replays of a step", dropped_before_replay)
