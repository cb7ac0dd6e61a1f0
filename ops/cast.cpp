// y = x in another floating dtype, rounded to nearest even;  dx = dy in x's dtype.
#include "ops/ops.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Cast final : Op {
  explicit Cast(DType dtype) : to(dtype) {}
  const OpInfo& info() const override { return cast_info; }

  TensorSpec infer(Inputs in) const override {
    check(is_floating(to), "cast: the target ", to, " is not floating; use f64, f32, f16 or bf16 (", Named{"x", in[0]},
          ")");
    return {in[0].shape(), to};
  }
  Tensor forward(Context&, Inputs in, const TensorSpec& out) override {
    from = in[0].dtype();
    return in[0].to(out.dtype);
  }
  Grads backward(Context&, const Tensor& dy, const std::vector<bool>&) override { return {dy.to(from)}; }

  DType to, from = DType::f32;
};

// Differences of a rounded function mean nothing, so the samples cast f64 to f64 through the op itself.
std::vector<Sample> samples() {
  return pointwise_samples([](const Var& x) { return apply(Cast(DType::f64), {x}); }, 0, 2);
}
}  // namespace

const OpInfo cast_info{"cast", AmpTag::leave, "its dtype is its purpose", samples};

Var cast(const Var& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  return apply(Cast(dtype), {x});
}

}  // namespace ht
