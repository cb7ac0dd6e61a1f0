// Var, backward and apply, through their public faces. What the tape keeps and frees is in test_tape.cpp, an op of
// one's own in test_own_op.cpp.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "autograd/tape.h"
#include "core/allocator.h"
#include "ops/ops.h"
#include "tests/error_of.h"

using namespace ht;

namespace {
using Values = std::vector<double>;

Var leaf(std::initializer_list<double> values, DType t = DType::f32) {
  return Var(Tensor::from(values, {static_cast<int64_t>(values.size())}, t), true);
}
Tensor ones(const Shape& s, DType t = DType::f32) { return Tensor::full(s, 1, t); }

}  // namespace

TEST_CASE("var: leaves, handles, data as Vars") {
  const Var x = leaf({1, 2, 3});
  const Var same = x;
  CHECK(x.is_leaf());
  CHECK(x.requires_grad());
  CHECK_FALSE(Var(Tensor::zeros({2})).requires_grad());
  CHECK_FALSE(x.grad().defined());
  x.backward(Tensor::from({4, 5, 6}, {3}));
  CHECK(same.grad().to_vector() == Values{4, 5, 6});  // one state for all handles
  same.zero_grad();
  CHECK_FALSE(x.grad().defined());
  x.set_value(Tensor::zeros({2}));
  CHECK(same.shape() == Shape{2});
  x.set_requires_grad(false);
  CHECK_FALSE(relu(same).requires_grad());
  CHECK(relu(Tensor::zeros({2})).is_leaf());  // nothing to record

  CHECK(error_of([] { Var(Tensor::zeros({2}, DType::i64), true); }) ==
        "var: only floating tensors can require a gradient ([2] i64 cpu)");
  CHECK(error_of([] { Var().value(); }) == "var: the Var is undefined");
  CHECK(error_of([] { Var().grad(); }) == "var: the Var is undefined");
  const Var y = relu(leaf({1}));
  CHECK_FALSE(y.is_leaf());
  CHECK(contains(error_of([&] { y.set_requires_grad(false); }), "detach() it first"));
  CHECK(contains(error_of([&] { y.set_value(Tensor::zeros({1})); }), "needs a leaf"));
}

TEST_CASE("backward: a Var used twice, and two backwards, accumulate") {
  const Var x = leaf({3, 4});
  const Var y = mul(x, x);
  y.backward(ones({2}));
  CHECK(x.grad().to_vector() == Values{6, 8});
  add(x, mul(x, x)).backward(ones({2}));
  CHECK(x.grad().to_vector() == Values{13, 17});
  x.zero_grad();
  const Var z = scale(x, 2);
  add(mul(z, z), z).backward(ones({2}));  // 4 x^2 + 2 x
  CHECK(x.grad().to_vector() == Values{26, 34});
}

TEST_CASE("backward: seeds") {
  const Var x = leaf({2, 3});
  const Tensor seed = Tensor::from({10, 100}, {2});
  mul(x, x).backward(seed);
  CHECK(x.grad().to_vector() == Values{40, 600});
  CHECK(seed.to_vector() == Values{10, 100});  // the caller's tensor is left alone
  reshape(x, {2, 1}).backward(seed.reshape({2, 1}));
  x.grad_slot().fill_(0);
  CHECK(seed.to_vector() == Values{10, 100});

  const Var s = Var(Tensor::full({1, 1}, 3), true);
  mul(s, s).backward();  // one element needs no seed
  CHECK(s.grad().item() == 6);
  CHECK(s.grad().shape() == Shape{1, 1});
  CHECK(contains(error_of([&] { mul(x, x).backward(); }),
                 "backward: needs a seed, since the output has 2 elements (output [2] f32 cpu)"));
  CHECK(contains(error_of([&] { mul(x, x).backward(ones({3})); }),
                 "backward: the seed does not fit (seed [3] f32 cpu, output [2] f32 cpu)"));
  CHECK(contains(error_of([&] { Var(Tensor::zeros({1})).backward(); }), "does not require a gradient"));
  CHECK(contains(error_of([&] { mul(x, x).detach().backward(ones({2})); }), "does not require a gradient"));
}

TEST_CASE("backward: retain_graph, and a second walk that changes nothing") {
  const Var x = leaf({2});
  const Var y = mul(x, x), z = scale(y, 3);
  z.backward({}, true);
  z.backward({}, true);
  CHECK(x.grad().item() == 24);
  z.backward();
  CHECK(x.grad().item() == 36);
  const uint64_t version = x.grad_slot().version();
  CHECK(contains(error_of([&] { z.backward(); }),
                 "was freed by an earlier backward; pass retain_graph = true to the first one, or run forward again"));
  // The part above the freed one is new: it must not deliver half a gradient either.
  const Var w = leaf({5});
  CHECK(contains(error_of([&] { add(w, mul(y, w)).backward(); }), "was freed by an earlier backward"));
  CHECK(x.grad_slot().version() == version);
  CHECK(x.grad().item() == 36);
  CHECK_FALSE(w.grad().defined());
}

TEST_CASE("backward: only where a gradient is wanted") {
  const Var x = leaf({2}), data = Tensor::from({5}, {1});
  const Var frozen = leaf({7});
  frozen.set_requires_grad(false);
  mul(mul(x, data), frozen).backward();
  CHECK(x.grad().item() == 35);
  CHECK_FALSE(data.grad().defined());
  CHECK_FALSE(frozen.grad().defined());
  const Var cut = mul(x, x).detach();
  CHECK(cut.is_leaf());
  x.zero_grad();
  mul(cut, x).backward();
  CHECK(x.grad().item() == 4);
}

TEST_CASE("no_grad: records nothing, nests, survives exceptions") {
  const Var x = leaf({2});
  CHECK(grad_enabled());
  {
    const no_grad outer;
    CHECK_FALSE(grad_enabled());
    {
      const no_grad inner;
      CHECK_FALSE(mul(x, x).requires_grad());
    }
    CHECK_FALSE(grad_enabled());
    const Var y = mul(x, x);
    CHECK(y.is_leaf());
    CHECK_FALSE(y.requires_grad());
    CHECK(contains(error_of([&] { y.backward(); }), "made under no_grad"));
  }
  CHECK(grad_enabled());
  try {
    const no_grad guard;
    mul(x, Tensor::zeros({3, 3}).view({9}).rows(0, 4));
  } catch (const Error&) {
  }
  CHECK(grad_enabled());
  CHECK(mul(x, x).requires_grad());
}

TEST_CASE("backward: a saved tensor that was written since is an error that names the op") {
  const Var x = leaf({2, 3});
  const Var y = mul(x, x);
  x.value().fill_(1);
  const std::string text = error_of([&] { y.backward(ones({2})); });
  CHECK(text.find("backward of mul: a saved tensor was written after forward ([2] f32 cpu; version ") == 0);
  CHECK(contains(text, "run backward before writing, or clone() it first"));
  CHECK_FALSE(x.grad().defined());
  const Var z = relu(x);
  z.value().fill_(2);  // relu keeps its output
  CHECK(contains(error_of([&] { z.backward(ones({2})); }), "backward of relu: a saved tensor was written"));
}

TEST_CASE("evaluation without no_grad does not grow the tape or the memory") {
  const Var w(Tensor::full({1000}, 0.5), true);
  const Var kept = mul(w, w);  // lives across the loop, on the same tape
  Var last;
  size_t settled = 0;
  for (int i = 0; i < 5000; ++i) {
    last = relu(mul(add(w, kept), w));
    if (i == 100) settled = memory_stats().allocated;
  }
  CHECK(memory_stats().allocated == settled);
  CHECK(kept.state()->tape == last.state()->tape);
  CHECK(last.state()->tape->nodes().size() <= 128);
  last.backward(ones({1000}), true);
  CHECK(w.grad().at(17) == doctest::Approx(2 * 0.5 + 3 * 0.25));  // (w + w^2) w
  kept.backward(ones({1000}));
  CHECK(w.grad().at(17) == doctest::Approx(1 + 0.75 + 1));
}

TEST_CASE("a chain of 100,000 ops: forward, backward and release need no deep stack") {
  const Var x(Tensor::full({1}, 1), true);
  Var y = x;
  for (int i = 0; i < 100'000; ++i) y = scale(y, i % 2 ? 0.5 : 2);
  y.backward();
  CHECK(x.grad().item() == 1);
  y = x;
  for (int i = 0; i < 100'000; ++i) y = neg(y);
  y = {};  // never walked
  CHECK(x.grad().item() == 1);
}

TEST_CASE("gradient slots: one half contribution stays half, a second one makes it FP32") {
  for (DType t : {DType::f16, DType::bf16}) {
    const Var x = leaf({1, 2}, t);
    scale(x, 3).backward(ones({2}, t));
    CHECK(x.grad_slot().dtype() == t);
    CHECK(x.grad().dtype() == t);
    scale(x, 3).backward(ones({2}, t));
    CHECK(x.grad_slot().dtype() == DType::f32);
    CHECK(x.grad_slot().to_vector() == Values{6, 6});
    CHECK(x.grad().dtype() == t);  // reads in the leaf's type
    x.zero_grad();
    CHECK_FALSE(x.grad_slot().defined());
  }
  // 40000 + 40000 does not fit half (AMP.md 19); 2048 + 1 + 1 would stop at 2048.
  const Var x = leaf({1}, DType::f16);
  for (int i = 0; i < 2; ++i) scale(x, 1).backward(Tensor::full({1}, 40000, DType::f16));
  CHECK(x.grad_slot().item() == 80000);
  CHECK(x.grad().item() == std::numeric_limits<double>::infinity());
  x.zero_grad();
  for (double g : {2048.0, 1.0, 1.0}) scale(x, 1).backward(Tensor::full({1}, g, DType::f16));
  CHECK(x.grad_slot().item() == 2050);
  // Inside the graph too: y is used twice, its slot adds in FP32 and its op gets its own type.
  x.zero_grad();
  const Var y = scale(x, 0.5);
  add(scale(y, 1), scale(y, 1)).backward(Tensor::full({1}, 40000, DType::f16));
  CHECK(std::isinf(x.grad().item()));  // 80000 as half is infinite: the loss scale's business
  const Var master = leaf({1, 2});
  cast(master, DType::f16).backward(ones({2}, DType::f16));
  CHECK(master.grad().dtype() == DType::f32);
}

TEST_CASE("gradient slots own their memory") {
  const Var a = leaf({1}), b = leaf({1});
  add(a, b).backward(ones({1}));
  a.grad_slot().fill_(9);
  CHECK(b.grad().item() == 1);
  const Var c = leaf({1, 2});
  const Var view = reshape(c, {2, 1});
  const Tensor seed = ones({2, 1});
  view.backward(seed, true);
  view.backward(seed);
  CHECK(seed.to_vector() == Values{1, 1});
  CHECK(c.grad().to_vector() == Values{2, 2});
}

TEST_CASE("apply: two graphs in one op are an error") {
  const Var x = leaf({2});
  const Var old = mul(x, x);
  old.backward();
  const Var fresh = mul(x, x);  // a new tape: the old one is walked
  CHECK(error_of([&] { add(fresh, old); }) ==
        "add: inputs come from two graphs, one of them already walked by backward; detach() the old one");
  CHECK(add(fresh, old.detach()).item() == 8);
  const no_grad guard;
  CHECK(add(fresh, old).item() == 8);
}

TEST_CASE("apply: the input hook sees every op and may replace its inputs") {
  struct Doubler final : InputHook {
    std::vector<std::string> seen;
    bool busy = false;
    void before(Op& op, std::vector<Var>& inputs) override {
      if (busy) return;  // the hook's own ops
      busy = true;
      seen.emplace_back(op.name());
      inputs[0] = scale(inputs[0], 2);
      busy = false;
    }
  } hook;
  const Var x = leaf({3});
  CHECK(set_input_hook(&hook) == nullptr);
  const Var y = relu(neg(neg(x)));
  CHECK(set_input_hook(nullptr) == &hook);
  CHECK(hook.seen == std::vector<std::string>{"neg", "neg", "relu"});
  CHECK(y.item() == 24);
  y.backward();
  CHECK(x.grad().item() == 8);  // the replacement is on the tape
  CHECK(neg(x).item() == -3);
  CHECK(hook.seen.size() == 3);
}
