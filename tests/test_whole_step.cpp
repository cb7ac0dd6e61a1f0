// A step of one parameter group is one launch on CUDA where it can be; one of two groups never is. Both give the same
// bits, whatever the gradients hold.
#include <doctest/doctest.h>

#include "core/captured_step.h"
#include "ops/ops.h"
#include "optim/adamw.h"
#include "tests/amp_rig.h"
#include "tests/on_devices.h"

using namespace ht;

namespace {
constexpr int64_t kSizes[] = {1, 7, 1000, 300001, 5};

struct Parameters : Module {
  explicit Parameters(Device device) {
    for (const int64_t n : kSizes)
      all.push_back(register_parameter(str("p", all.size()), Tensor::normal({n}, {4, all.size()}).to(device)));
  }
  Var forward(const Var& x) override { return x; }
  std::string describe() const override { return "Parameters"; }
  std::vector<Var> all;
};

template <class Options>
std::vector<optim::ParamGroup<Options>> groups_of(const std::vector<Var>& params, int count, const Options& options) {
  if (count == 1) return {{params, options}};
  return {{{params.begin(), params.begin() + 2}, options}, {{params.begin() + 2, params.end()}, options}};
}

template <class Sgd, class Options>
struct Training {
  Training(Device device, int groups, const Options& options, bool scaled)
      : model(device), optimizer(groups_of(model.all, groups, options)) {
    optimizer.set_schedule(optim::cosine_lr(8), 8);
    if (scaled) amp = std::make_unique<amp::Amp>(amp::initialize(model, optimizer, {.init_scale = 256}));
    for (const Var& p : model.all) p.half_copy(DType::f16);
  }

  // Gradients of both precisions; that of parameter `bad` has an infinity as its last number.
  void step(int number, int bad, bool bad_loss = false) {
    optimizer.zero_grad();
    const Device device = optimizer.device();
    const Var loss = sum(scale(model.all[0], bad_loss ? kInf : 0.5));
    amp ? amp->backward(loss) : loss.backward();
    for (size_t i = 0; i < model.all.size(); ++i) {
      const Tensor g =
          Tensor::normal({kSizes[i]}, {9, i + 10 * static_cast<size_t>(number)}, 0, 64, i % 2 ? DType::f16 : DType::f32)
              .to(device);
      if (static_cast<int>(i) == bad) g.rows(kSizes[i] - 1, kSizes[i]).fill_(kInf);
      model.all[i].grad_slot() = g;
    }
    optimizer.step();
  }

  std::vector<std::vector<double>> everything() const {
    std::vector<std::vector<double>> all;
    for (const Var& p : model.all) all.push_back(bits_of(p.value())), all.push_back(bits_of(p.state()->twin));
    for (const auto& [key, value] : optimizer.state_dict()) all.push_back(bits_of(value));
    if (!amp) return all;
    for (const auto& [key, value] : amp->state_dict()) all.push_back(bits_of(value));
    const amp::Status s = amp->status();
    all.push_back({s.scale, static_cast<double>(s.growth_tracker), static_cast<double>(s.applied_steps),
                   static_cast<double>(s.skipped_steps), static_cast<double>(s.consecutive_skips), s.last_skip_scale});
    return all;
  }

  Parameters model;
  Sgd optimizer;
  std::unique_ptr<amp::Amp> amp;
};

template <class Sgd, class Options>
void same_bits(Device device, const Options& options) {
  for (const bool scaled : {false, true}) {
    Training<Sgd, Options> one(device, 1, options, scaled), two(device, 2, options, scaled);
    const int bad[] = {-1, -1, 0, -1, 3, 3, -1, 4, -1};
    for (int i = 0; i < 9; ++i) {
      if (!scaled && bad[i] >= 0) continue;
      one.step(i, bad[i]);
      two.step(i, bad[i]);
      CAPTURE(i);
      CHECK(one.everything() == two.everything());
      if (scaled) CHECK(one.amp->status().last_skip == two.amp->status().last_skip);
    }
    CHECK(one.optimizer.applied_steps() == 5);
    if (!scaled) continue;
    one.step(20, -1, true);
    two.step(20, -1, true);
    CHECK(one.amp->status().last_skip == "the loss was not finite");
    CHECK(one.everything() == two.everything());
  }
}

void sgd_steps(Device device) {
  same_bits<optim::Sgd>(device, optim::SgdOptions{.lr = 0.1});
  same_bits<optim::Sgd>(device, optim::SgdOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true, .weight_decay = 0.01});
}
void adamw_steps(Device device) { same_bits<optim::AdamW>(device, optim::AdamWOptions{.lr = 0.01}); }

// Several backwards before one step, unscaled by hand or not; a loss that is not finite counts whichever it is.
void several_backwards(Device device) {
  for (const int bad : {-1, 0, 1}) {
    AmpRig rig(device, {1}, {.lr = 1}, {.init_scale = 4});
    const auto backward = [&](bool infinite) { rig.amp.backward(sum(scale(rig.model.w, infinite ? kInf : 0.25))); };
    backward(bad == 0);
    backward(bad == 1);
    rig.sgd.step();
    CHECK(rig.w()[0] == (bad < 0 ? 0.5 : 1));
    CHECK(rig.amp.status().skipped_steps == (bad < 0 ? 0 : 1));
    CHECK(rig.amp.scale() == 4);  // a bad loss leaves it alone
    rig.sgd.zero_grad();
    backward(bad == 0);
    rig.sgd.zero_grad();  // dropped
    backward(false);
    rig.amp.unscale();
    CHECK(rig.model.w.grad().item() == 0.25);
    rig.sgd.step();
    CHECK(rig.w()[0] == (bad < 0 ? 0.25 : 0.75));
  }
}

// The seed of a backward is the scale of that moment, in a recorded step too.
void scale_moves_between_replays(Device device) {
  AmpRig rig(device, {0}, {.lr = 1}, {.init_scale = 4, .growth_interval = 1});
  const Tensor factor = Tensor::full({1}, 1, DType::f32, device), gradient = Tensor::zeros({1}, DType::f32, device);
  CapturedStep step(device, [&](std::span<const Tensor>) {
    rig.sgd.zero_grad();
    rig.amp.backward(sum(mul(rig.model.w, factor)));
    gradient.copy_(rig.model.w.grad_slot());
    rig.sgd.step();
  });
  double scale = 4;
  for (int i = 0; i < 5; ++i, scale *= 2) {
    step({});
    CHECK(gradient.item() == scale);
    CHECK(rig.w()[0] == -1 - i);
    CHECK(rig.amp.scale() == scale * 2);
  }
}
}  // namespace

HT_ON_DEVICES("whole step: sgd", sgd_steps)
HT_ON_DEVICES("whole step: adamw", adamw_steps)
HT_ON_DEVICES("whole step: several backwards", several_backwards)
HT_ON_DEVICES("whole step: the scale moves between replays", scale_moves_between_replays)
