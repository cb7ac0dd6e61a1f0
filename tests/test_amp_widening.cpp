// Losses that read a half input as FP32 by themselves under amp: the bits of a cast in front.
#include <doctest/doctest.h>

#include <functional>
#include <limits>

#include "amp/autocast.h"
#include "autograd/tape.h"
#include "ops/ops.h"
#include "tests/amp_rig.h"
#include "tests/error_of.h"
#include "tests/on_devices.h"

using namespace ht;
using namespace ht::amp;

namespace {
using Loss = std::function<Var(const Var& x, const Var& target)>;
struct Case {
  std::string name;
  Loss loss;
};
const Reduction kReductions[] = {Reduction::mean, Reduction::sum};
const DType kHalves[] = {DType::f16, DType::bf16};

std::vector<Case> elementwise_losses() {
  std::vector<Case> all;
  for (const Reduction r : kReductions) {
    all.push_back({"mse_loss", [=](const Var& x, const Var& t) { return mse_loss(x, t, r); }});
    all.push_back({"l1_loss", [=](const Var& x, const Var& t) { return l1_loss(x, t, r); }});
    all.push_back({"smooth_l1_loss", [=](const Var& x, const Var& t) { return smooth_l1_loss(x, t, 0.7, r); }});
    all.push_back({"binary_cross_entropy_with_logits",
                   [=](const Var& x, const Var& t) { return binary_cross_entropy_with_logits(x, t, r); }});
  }
  return all;
}

std::vector<Case> class_losses() {
  std::vector<Case> all;
  for (const Reduction r : kReductions) {
    for (const double smoothing : {0.0, 0.1})
      all.push_back({"cross_entropy", [=](const Var& x, const Var& t) { return cross_entropy(x, t, {smoothing, r}); }});
    all.push_back({"nll_loss", [=](const Var& x, const Var& t) { return nll_loss(x, t, r); }});
  }
  return all;
}

int casts_on_tape_of(const Var& y) {
  int casts = 0;
  for (const Tape::Node& node : y.state()->tape->nodes()) casts += node.op && node.op->name() == "cast";
  return casts;
}

struct Result {
  Tensor loss, dx, dt;
};
bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() && bits_of(a) == bits_of(b);
}

// One forward and backward of the loss of x, a half leaf or the half result of ops of one, by amp or by a cast.
Result run(const Loss& loss, const Tensor& x0, const Tensor& t0, double seed, bool by_cast, bool is_leaf = true) {
  const Var x(x0, true), t(t0, is_floating(t0.dtype()));
  const Var in = is_leaf ? x : neg(neg(x));
  const Var y = loss(by_cast ? cast(in, DType::f32) : in, t);
  CHECK(y.dtype() == DType::f32);
  CHECK(casts_on_tape_of(y) == int{by_cast} + int{is_half(t0.dtype())});
  y.backward(Tensor::full({}, seed, DType::f32, x0.device()));
  return {y.value(), x.grad_slot(), t.grad()};
}

void check_same(const Loss& loss, const Tensor& x, const Tensor& t) {
  for (const double seed : {1.0, 1024.0}) {
    for (const bool is_leaf : {true, false}) {
      const Result own = run(loss, x, t, seed, false, is_leaf), want = run(loss, x, t, seed, true, is_leaf);
      CAPTURE(seed);
      CAPTURE(is_leaf);
      CHECK(own.dx.dtype() == x.dtype());
      CHECK(same_bits(own.loss, want.loss));
      CHECK(same_bits(own.dx, want.dx));
      if (is_floating(t.dtype())) CHECK(same_bits(own.dt, want.dt));
    }
  }
}

// Sizes off every vector width, short and long enough for each way of summing.
void elementwise(Device device) {
  for (const DType half : kHalves) {
    Autocast autocast({}, half);
    autocast.install();
    for (const Shape& shape : {Shape{}, Shape{7}, Shape{3, 5}, Shape{129, 33}, Shape{3, 70001}}) {
      const Tensor x = Tensor::uniform(shape, {5, 1}, -3, 3, half).to(device);
      const Tensor t = Tensor::uniform(shape, {5, 2}, 0, 1).to(device);
      for (const Case& c : elementwise_losses()) {
        INFO(c.name, " ", half, " ", shape);
        check_same(c.loss, x, t);
        if (shape.rank() == 2) check_same(c.loss, x, t.to(half));  // amp casts such a target, not x
      }
    }
    // What overflows half or vanishes in it, forward and backward.
    const Tensor x = Tensor::from({300, -6e4, 6e-8, -0.0, kInf, 0.5, 1}, {7}, half).to(device);
    const Tensor t = Tensor::from({-300, 7e4, 0, 0, 1, 0.5, 1 + 0x1p-20}, {7}).to(device);
    for (const Case& c : elementwise_losses()) {
      INFO(c.name, " ", half);
      check_same(c.loss, x, t);
    }
  }
}

void classes(Device device) {
  for (const DType half : kHalves) {
    Autocast autocast({}, half);
    autocast.install();
    for (const Shape& shape : {Shape{1, 3}, Shape{5, 1}, Shape{7, 10}, Shape{129, 37}, Shape{2053, 11}}) {
      const Tensor x = Tensor::uniform(shape, {6, 1}, -9, 9, half).to(device);
      Tensor labels = Tensor::empty({shape[0]}, DType::i64);
      for (int64_t i = 0; i < shape[0]; ++i) labels.data<int64_t>()[i] = i * 5 % shape[1];
      for (const Case& c : class_losses()) {
        INFO(c.name, " ", half, " ", shape);
        check_same(c.loss, x, labels.to(device));
        check_same(c.loss, x, labels.to(DType::i32).to(device));
      }
    }
  }
}

void only_under_amp(Device device) {
  const Var h(Tensor::uniform({4, 3}, {7, 1}, 0.1, 0.9, DType::f16).to(device), true);
  const Var t = Tensor::uniform({4, 3}, {7, 2}).to(device);
  const auto check_untouched = [&] {
    for (const Case& c : elementwise_losses()) {
      const std::string error = error_of([&] { c.loss(h, t); });
      CHECK_MESSAGE(contains(error, c.name + ": dtypes differ; cast() the target to the input's"), error);
      CHECK(c.loss(h, h.detach()).dtype() == DType::f16);
    }
    const Var labels = Tensor::zeros({4}, DType::i64, device);
    for (const Case& c : class_losses()) CHECK(c.loss(h, labels).dtype() == DType::f16);
  };
  check_untouched();
  {
    Autocast autocast({}, DType::f16, false);  // O2, O3
    autocast.install();
    check_untouched();
  }
  Autocast autocast({}, DType::f16);
  autocast.install();
  CHECK(mse_loss(h, t).dtype() == DType::f32);
  {
    const disable_casts guard;
    check_untouched();
  }
  autocast.uninstall();
  check_untouched();
}

// The rule of the call decides, not the op: another list, another input.
void by_the_rule(Device device) {
  const Var h(Tensor::uniform({5, 3}, {8, 1}, 0.1, 0.9, DType::f16).to(device), true);
  const Tensor t = Tensor::uniform({5, 3}, {8, 2}).to(device);
  Policy policy;
  policy.set("mse_loss", AmpTag::promote);
  policy.set("l1_loss", AmpTag::leave);
  policy.set("binary_cross_entropy", AmpTag::deny);
  Autocast autocast(policy, DType::f16);
  autocast.install();
  autocast.start_trace();
  CHECK(mse_loss(h, t.to(DType::f16)).dtype() == DType::f16);
  CHECK(contains(error_of([&] { l1_loss(h, t); }), "dtypes differ"));
  CHECK(autocast.take_trace().empty());
  check_same([](const Var& x, const Var& target) { return mse_loss(x, target); }, h.value(), t);
  check_same([](const Var& x, const Var& target) { return binary_cross_entropy(x, target); }, h.value(), t);

  const Var wide(h.value().to(DType::f32), true), target(t.to(DType::f16), true);
  autocast.start_trace();
  const Var y = smooth_l1_loss(wide, target, 1);
  const auto trace = autocast.take_trace();
  REQUIRE(trace.size() == 1);  // an FP32 input and a half target: an ordinary cast
  CHECK(trace[0].input == 1);
  CHECK(!trace[0].in_op);
  y.backward();
  CHECK(target.grad_slot().dtype() == DType::f16);
  CHECK(wide.grad_slot().dtype() == DType::f32);
  CHECK(contains(error_of([&] { mse_loss(h, Var(t.to(DType::f64))); }), "no error"));  // promoted to f64 by casts
}

void backward_twice(Device device) {
  Autocast autocast({}, DType::f16);
  autocast.install();
  const Var h(Tensor::uniform({5, 3}, {9, 1}, -1, 1, DType::f16).to(device), true);
  const Var t = Tensor::uniform({5, 3}, {9, 2}).to(device), labels = Tensor::zeros({5}, DType::i64, device);
  for (const Var& y : {mse_loss(h, t), cross_entropy(h, labels), nll_loss(h, labels)}) {
    h.zero_grad();
    y.backward({}, true);
    const Tensor once = h.grad_slot().clone();
    h.zero_grad();
    y.backward();
    CHECK(same_bits(once, h.grad_slot()));
  }
}
}  // namespace

HT_ON_DEVICES("widening: the losses over elements have the bits of a cast in front", elementwise)
HT_ON_DEVICES("widening: the losses over classes have the bits of a cast in front", classes)
HT_ON_DEVICES("widening: without amp's casts a half input is what it was", only_under_amp)
HT_ON_DEVICES("widening: as the list and the other input say", by_the_rule)
HT_ON_DEVICES("widening: backward may run twice", backward_twice)
