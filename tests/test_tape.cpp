// The tape: what it keeps and frees, what a failed backward leaves, gradients that do not fit.
#include <doctest/doctest.h>

#include "autograd/tape.h"
#include "core/allocator.h"
#include "tests/error_of.h"

using namespace ht;

namespace {
// y = a + b or y = 2 a, with a backward that can be told to misbehave.
enum class Fault { none, raises, shape, dtype, count };

struct Sum final : Op {
  explicit Sum(Fault f = Fault::none) : fault(f) {}
  Fault fault;
  Tensor saved;

  const OpInfo& info() const override {
    static const OpInfo i{"test_sum", AmpTag::leave, "", nullptr};
    return i;
  }
  TensorSpec infer(Inputs in) const override { return in[0].spec(); }
  Tensor forward(Context&, Inputs in, const TensorSpec& out) override {
    saved = in[0];
    const Tensor y = Tensor::empty(out, in[0].device());
    for (int64_t i = 0; i < y.numel(); ++i)
      y.data<float>()[i] = in[0].data<float>()[i] + in[in.size() - 1].data<float>()[i];
    return y;
  }
  Grads backward(Context&, const Tensor& dy, const std::vector<bool>& needs) override {
    if (fault == Fault::raises) fail("this one fails");
    if (fault == Fault::shape) return {Tensor::zeros({dy.numel() + 1})};
    if (fault == Fault::dtype) return {Tensor::zeros(dy.shape(), DType::i32)};
    if (fault == Fault::count) return {};
    if (needs.size() == 2) return {dy, dy};
    const Tensor dx = dy.clone();
    for (int64_t i = 0; i < dx.numel(); ++i) dx.data<float>()[i] *= 2;
    return {dx};
  }
};

Var twice(const Var& x, Fault fault = Fault::none) { return apply(Sum(fault), {x}); }
Var plus(const Var& a, const Var& b) { return apply(Sum(), {a, b}); }
Var weight(int64_t n = 3) { return Var(Tensor::full({n}, 1), true); }
Tensor ones(int64_t n = 3) { return Tensor::full({n}, 1); }
size_t nodes(const Var& v) { return v.state()->tape->nodes().size(); }

}  // namespace

TEST_CASE("tape: a Var used twice gets both gradients, and equal ones do not share memory") {
  const Var a = weight(), b = weight();
  const Var y = plus(plus(a, b), twice(a));
  y.backward(ones());
  CHECK(a.grad().to_vector() == std::vector<double>{3, 3, 3});
  CHECK(b.grad().to_vector() == std::vector<double>{1, 1, 1});
  CHECK(!a.grad_slot().same_storage(b.grad_slot()));
  const Tensor seed = ones();
  plus(a, b).backward(seed);
  a.zero_grad();
  CHECK(!b.grad_slot().same_storage(seed));
  CHECK(seed.to_vector() == std::vector<double>{1, 1, 1});
  CHECK(b.grad().to_vector() == std::vector<double>{2, 2, 2});
}

TEST_CASE("tape: a second walk is an error and changes no gradient") {
  const Var w = weight();
  const Var trunk = twice(w), one = twice(trunk), two = plus(trunk, trunk);
  one.backward(ones());
  CHECK(w.grad().at(0) == 4);
  CHECK(error_of([&] { two.backward(ones()); }).find("was freed by an earlier backward") != std::string::npos);
  CHECK(error_of([&] { one.backward(ones()); }).find("pass retain_graph = true") != std::string::npos);
  CHECK(w.grad().at(0) == 4);
  const Var kept = twice(twice(w));
  w.zero_grad();
  kept.backward(ones(), true);
  kept.backward(ones());
  CHECK(w.grad().at(0) == 8);
}

TEST_CASE("tape: evaluation and training do not grow it, whatever outlives an iteration") {
  const Var w = weight();
  SUBCASE("evaluation with gradients on, the output outside the loop") {
    Var y;
    for (int i = 0; i < 1000; ++i) y = twice(twice(w));
    CHECK(nodes(y) <= 64);
    y.backward(ones());
    CHECK(w.grad().at(0) == 4);
  }
  SUBCASE("training beside a branch that is never walked") {
    const Var kept = twice(twice(w));
    Var loss;
    for (int i = 0; i < 1000; ++i) {
      loss = twice(plus(twice(w), w));
      w.zero_grad();
      loss.backward(ones());
      REQUIRE(w.grad().at(0) == 6);
    }
    CHECK(nodes(kept) <= 64);
    w.zero_grad();
    kept.backward(ones());
    CHECK(w.grad().at(0) == 4);
  }
  SUBCASE("many live nodes are all kept and still right after renumbering") {
    std::vector<Var> live;
    Var y = w;
    for (int i = 0; i < 300; ++i) {
      const Var dead = twice(twice(w));
      live.push_back(plus(y, w));
      y = i % 50 == 49 ? w : live.back();
    }
    CHECK(nodes(live.back()) <= 640);
    live[299].backward(ones(), true);
    CHECK(w.grad().at(0) == 51);
    w.zero_grad();
    live[130].backward(ones());
    CHECK(w.grad().at(0) == 32);
    CHECK(error_of([&] { live[140].backward(ones()); }).find("was freed") != std::string::npos);
  }
}

TEST_CASE("tape: a graph deeper than the stack is walked and freed without recursion") {
  const Var w(Tensor::full({1}, 0), true);
  Var y = w;
  for (int i = 0; i < 100'000; ++i) y = plus(y, w);
  y.backward(ones(1));
  CHECK(w.grad().at(0) == 100'001);
  y = w;
  for (int i = 0; i < 100'000; ++i) y = plus(y, w);
  y = {};
}

TEST_CASE("tape: a failed backward names the op and frees what was saved") {
  const Var w = weight(1 << 16);
  const size_t before = memory_stats().allocated;
  Var y = twice(twice(twice(twice(w), Fault::raises)));
  CHECK(error_of([&] { y.backward(ones(1 << 16)); }) == "backward of test_sum: this one fails");
  CHECK(!w.grad().defined());
  // y itself is alive, with its value; the values in between were only held by the graph.
  CHECK(memory_stats().allocated <= before + (1 << 18));
  CHECK(error_of([&] { y.backward(ones(1 << 16)); }).find("was freed by an earlier backward") != std::string::npos);
  y = {};
  CHECK(memory_stats().allocated == before);
}

TEST_CASE("tape: a gradient that does not fit its input is an error") {
  const Var w = weight();
  CHECK(error_of([&] { twice(w, Fault::shape).backward(ones()); }) ==
        "backward of test_sum: the gradient of input 0 does not fit its shape [3] (grad [4] f32 cpu)");
  CHECK(error_of([&] { twice(w, Fault::dtype).backward(ones()); }).find("grad [3] i32 cpu") != std::string::npos);
  CHECK(error_of([&] { twice(w, Fault::count).backward(ones()); }).find("returned 0 gradients for 1 inputs") !=
        std::string::npos);
  CHECK(!w.grad().defined());
}
