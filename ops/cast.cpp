// y = x in another floating dtype, rounded to nearest even;  dx = dy in x's dtype, or as it comes for a parameter whose
// half copy is y: half weight gradients stay half (the gradient slot knows what to do with them).
#include "ops/ops.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Cast final : Op {
  explicit Cast(DType dtype, Tensor half_copy = {}, bool was_fresh = false)
      : to(dtype), copy(std::move(half_copy)), cached(was_fresh) {}
  const OpInfo& info() const override { return cast_info; }

  TensorSpec infer(Inputs in) const override {
    check(is_floating(to), "cast: the target ", to, " is not floating; use f64, f32, f16 or bf16 (", Named{"x", in[0]},
          ")");
    return {in[0].shape(), to};
  }
  Tensor forward(Context&, Inputs in, const TensorSpec& out) override {
    from = in[0].dtype();
    return copy ? copy : in[0].to(out.dtype);
  }
  Grads backward(Context&, const Tensor& dy, const std::vector<bool>&) override { return {copy ? dy : dy.to(from)}; }
  std::string note() const override { return str(from, " -> ", to, cached ? ", cached" : ""); }

  DType to, from = DType::f32;
  Tensor copy;  // of a parameter
  bool cached;  // it was there already: no kernel ran
};

// Differences of a rounded function mean nothing, so the samples cast f64 to f64 through the op itself.
std::vector<Sample> samples() {
  return pointwise_samples([](const Var& x) { return apply(Cast(DType::f64), {x}); }, 0, 2);
}
}  // namespace

const OpInfo cast_info{"cast", AmpTag::leave, "its dtype is its purpose", samples};

Var cast(const Var& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  const std::shared_ptr<VarState>& half = x.state()->widened_from;
  if (half && half->value.dtype() == dtype) return Var(half);  // half -> float -> half is the half itself
  Var y = apply(Cast(dtype), {x});
  if (is_half(x.dtype()) && !is_half(dtype)) y.state()->widened_from = x.state();
  return y;
}

Var cast_parameter(const Var& parameter, DType dtype) {
  const bool cached = parameter.has_half_copy(dtype);
  return apply(Cast(dtype, parameter.half_copy(dtype), cached), {parameter});
}

}  // namespace ht
