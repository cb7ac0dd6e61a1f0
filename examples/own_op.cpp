// An operation of one's own, checked against central differences: y = x^3, for float64 on the CPU.
#include <cmath>
#include <cstdio>

#include "halftone.h"

namespace {
std::vector<ht::Sample> samples();
const ht::OpInfo cube_info{"cube", ht::AmpTag::deny, "x^3 leaves the range of FP16 early", samples};

struct Cube final : ht::Op {
  ht::Saved x;
  const ht::OpInfo& info() const override { return cube_info; }
  ht::TensorSpec infer(ht::Inputs in) const override { return in[0].spec(); }
  ht::Tensor forward(ht::Context&, ht::Inputs in, const ht::TensorSpec& out) override {
    x = in[0];
    const ht::Tensor y = ht::Tensor::empty(out, in[0].device());
    for (int64_t i = 0; i < y.numel(); ++i) y.data<double>()[i] = std::pow(in[0].data<double>()[i], 3);
    return y;
  }
  ht::Grads backward(ht::Context&, const ht::Tensor& dy, const std::vector<bool>&) override {
    const ht::Tensor dx = ht::Tensor::empty_like(dy);
    for (int64_t i = 0; i < dx.numel(); ++i)
      dx.data<double>()[i] = 3 * std::pow(x->data<double>()[i], 2) * dy.data<double>()[i];
    return {dx};
  }
};

ht::Var cube(const ht::Var& x) { return ht::apply(Cube{}, {x}); }

std::vector<ht::Sample> samples() {
  return {{"[3,5]", {ht::Tensor::normal({3, 5}, {.seed = 3}, 0, 1, ht::DType::f64)}, [](std::span<const ht::Var> in) {
             return cube(in[0]);
           }}};
}
}  // namespace

int main() {
  ht::register_op(cube_info);  // amp and the tools know it by name from here on
  for (const ht::Sample& s : samples()) {
    const ht::GradcheckResult result = ht::gradcheck("cube", s.function, s.inputs);
    std::printf("cube %s: %s, worst relative error %.1e\n", s.label.c_str(), result ? "ok" : result.message.c_str(),
                result.worst);
    if (!result) return 1;
  }
}
