// An op of one's own: what apply refuses, what gradcheck passes and catches, the registry.
#include <doctest/doctest.h>

#include "autograd/gradcheck.h"
#include "ops/ops.h"
#include "ops/registry.h"
#include "tests/error_of.h"

using namespace ht;

namespace {
// y = x^2 for f64, with the ways to be wrong that gradcheck must see.
enum class Flaw { none, scaled, unwritten_dx, unwritten_y, missing, shape, destroys };

std::vector<Sample> square_samples();
const OpInfo square_info{"test_square", AmpTag::leave, "a test", square_samples};

struct Square final : Op {
  explicit Square(Flaw f = Flaw::none) : flaw(f) {}
  Flaw flaw;
  Saved x_;

  const OpInfo& info() const override { return square_info; }
  TensorSpec infer(Inputs in) const override {
    check(in[0].dtype() == DType::f64, "test_square: x must be f64 (", Named{"x", in[0]}, ")");
    return in[0].spec();
  }
  Tensor forward(Context& ctx, Inputs in, const TensorSpec& out) override {
    const Tensor y = Tensor::empty(out, ctx.device());
    const int64_t n = y.numel() - (flaw == Flaw::unwritten_y);
    for (int64_t i = 0; i < n; ++i) y.data<double>()[i] = in[0].data<double>()[i] * in[0].data<double>()[i];
    x_ = in[0];
    return y;
  }
  Grads backward(Context&, const Tensor& dy, const std::vector<bool>&) override {
    if (flaw == Flaw::missing) return {Tensor()};
    const Tensor dx = Tensor::empty_like(dy);
    const double factor = flaw == Flaw::scaled ? 2.002 : 2;
    for (int64_t i = 0; i < dx.numel() - (flaw == Flaw::unwritten_dx); ++i)
      dx.data<double>()[i] = factor * x_->data<double>()[i] * dy.data<double>()[i];
    if (flaw == Flaw::shape) return {dx.reshape({-1, 1})};
    if (flaw == Flaw::destroys) {
      const Tensor saved = *x_;
      x_ = Tensor::zeros(saved.shape(), DType::f64);  // a second backward sees other values
    }
    return {dx};
  }
};

std::vector<Sample> square_samples() {
  return {{"x [3]", {Tensor::from({1, -2, 0.5}, {3}, DType::f64)}, [](std::span<const Var> in) {
             return apply(Square{}, {in[0]});
           }}};
}

GradcheckResult check_square(Flaw flaw, double at = 3) {
  const Tensor x = Tensor::from({1, -2, at}, {3}, DType::f64);
  return gradcheck(
      "test_square", [=](std::span<const Var> in) { return apply(Square(flaw), {in[0]}); }, std::span(&x, 1));
}
}  // namespace

TEST_CASE("apply: errors say which input") {
  CHECK(error_of([] { relu(Var()); }) == "relu: input 0 is undefined");
  CHECK(error_of([] { relu(Tensor()); }) == "relu: input 0 is undefined");
  CHECK(error_of([] { add(Tensor::zeros({2}), Var()); }) == "add: input 1 is undefined");
  CHECK(error_of([] { apply(Square{}, {}); }) == "test_square: no inputs");
  CHECK(error_of([] { apply(Square{}, {Tensor::zeros({2})}); }) == "test_square: x must be f64 (x [2] f32 cpu)");
}

TEST_CASE("gradcheck: passes a right op, and reports how close it was") {
  const GradcheckResult r = check_square(Flaw::none);
  CHECK_MESSAGE(r.ok, r.message);
  CHECK(r.message.empty());
  CHECK(r.worst < 1e-8);
  CHECK(static_cast<bool>(r));
}

TEST_CASE("gradcheck: catches a factor of 1.001 and names op, input, index and numbers") {
  const GradcheckResult r = check_square(Flaw::scaled);
  CHECK_FALSE(r.ok);
  CHECK(r.message.find("gradcheck of test_square: input 0 index 0: analytic ") == 0);
  CHECK(contains(r.message, ", numeric "));
  CHECK(contains(r.message, ", relative error 0.00099"));
  // In the second input only, at one index only.
  const Tensor in[2] = {Tensor::from({1, 2}, {2}, DType::f64), Tensor::from({0, 2}, {2}, DType::f64)};
  const GradcheckResult second = gradcheck(
      "sum", [](std::span<const Var> v) { return add(apply(Square{}, {v[0]}), apply(Square(Flaw::scaled), {v[1]})); },
      in);
  CHECK(contains(second.message, "gradcheck of sum: input 1 index 1: "));
}

TEST_CASE("gradcheck: catches elements that are never written") {
  CHECK(contains(check_square(Flaw::unwritten_dx).message, "input 0 index 2"));
  CHECK(contains(check_square(Flaw::unwritten_dx).message, "nan"));
  CHECK_FALSE(check_square(Flaw::unwritten_y).ok);
}

TEST_CASE("gradcheck: catches a missing gradient, a wrong shape, and a backward that destroys what it saved") {
  CHECK(check_square(Flaw::missing).message == "gradcheck of test_square: input 0 got no gradient");
  std::string shape;
  try {
    shape = check_square(Flaw::shape).message;
  } catch (const Error& e) {
    shape = e.what();
  }
  CHECK(contains(shape, "[3,1]"));
  CHECK(contains(check_square(Flaw::destroys).message, "a second backward gave"));
}

TEST_CASE("gradcheck: its inputs must be f64, and so must the output") {
  const Tensor x = Tensor::zeros({2});
  const auto f = [](std::span<const Var> in) { return relu(in[0]); };
  CHECK(error_of([&] { gradcheck("relu", f, std::span(&x, 1)); }) ==
        "gradcheck: inputs must be f64 on the CPU (input [2] f32 cpu)");
  const Tensor d = x.to(DType::f64);
  const GradcheckResult r = gradcheck(
      "cast", [](std::span<const Var> in) { return cast(in[0], DType::f32); }, std::span(&d, 1));
  CHECK(r.message == "gradcheck of cast: the output is [2] f32 cpu, not f64");
}

TEST_CASE("registry: every op complete; a user's op joins it once") {
  for (const OpInfo* op : all_ops()) {
    CHECK_MESSAGE(!op->reason.empty(), op->name);
    CHECK_MESSAGE(&find_op(op->name) == op, op->name);
  }
  CHECK(error_of([] { find_op("nonsense"); }) == "ops: 'nonsense' is unknown; `halftone ops` lists them all");
  const size_t count = all_ops().size();
  register_op(square_info);
  CHECK(all_ops().size() == count + 1);
  CHECK(&find_op("test_square") == &square_info);
  CHECK(error_of([] { register_op(square_info); }) == "register_op: 'test_square' is taken");
  static const OpInfo impostor{"relu", AmpTag::deny, "takes a built-in's name", square_samples};
  CHECK(error_of([] { register_op(impostor); }) == "register_op: 'relu' is taken");
  static const OpInfo nameless{"", AmpTag::deny, "", square_samples};
  CHECK(error_of([] { register_op(nameless); }) == "register_op: the op has no name");
  CHECK(all_ops().size() == count + 1);
  for (const Sample& s : find_op("test_square").samples()) {
    const GradcheckResult r = gradcheck("test_square", s.function, s.inputs);
    CHECK_MESSAGE(r.ok, r.message);
  }
  CHECK(name_of(AmpTag::forbid) == "forbid");
}
