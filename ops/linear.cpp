// y = x W^T + bias over the last axis;  dx = dy W, dW = dy^T x, dbias = the sum of dy's rows.
#include "ops/gemm.h"
#include "ops/ops.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Linear final : Op {
  const OpInfo& info() const override { return linear_info; }

  TensorSpec infer(Inputs in) const override {
    const Tensor &x = in[0], &w = in[1];
    const auto need = [&](bool ok, const auto&... parts) {
      if (ok) return;
      const std::string bias = in.size() > 2 ? str(", ", Named{"bias", in[2]}) : "";
      fail("linear: ", parts..., " (", Named{"x", x}, ", ", Named{"weight", w}, bias, ")");
    };
    need(is_floating(x.dtype()) && is_floating(w.dtype()), "the inputs must be floating; cast() them first");
    need(x.dtype() == w.dtype(), "x is ", x.dtype(), " but weight is ", w.dtype(), "; cast() one of them");
    need(x.rank() >= 1, "x has rank 0 but needs at least 1");
    need(w.rank() == 2, "weight has rank ", w.rank(), " but needs 2, [out, in]");
    need(x.dim(-1) == w.dim(1), "x has ", x.dim(-1), " columns but weight takes ", w.dim(1));
    if (in.size() > 2) {
      need(in[2].dtype() == x.dtype(), "x is ", x.dtype(), " but bias is ", in[2].dtype(), "; cast() one of them");
      need(in[2].shape() == Shape{w.dim(0)}, "bias must have shape ", Shape{w.dim(0)});
    }
    return {x.shape().with(-1, w.dim(0)), x.dtype()};
  }

  Tensor forward(Context& ctx, Inputs in, const TensorSpec& out) override {
    const Tensor &x = in[0], &w = in[1], y = Tensor::empty(out, ctx.device());
    gemm(ctx, {.m = rows(x), .n = w.dim(0), .k = w.dim(1), .transpose_b = true}, x, w, y,
         in.size() > 2 ? in[2] : Tensor());
    x_ = x, w_ = w;
    return y;
  }

  Grads backward(Context& ctx, const Tensor& dy, const std::vector<bool>& needs) override {
    const Tensor &x = *x_, &w = *w_;
    Grads grads(needs.size());
    const bool bias = needs.size() > 2 && needs[2];
    if (bias) grads[2] = Tensor::empty(Shape{w.dim(0)}, dy.dtype(), dy.device());
    if (needs[1]) {
      grads[1] = Tensor::empty_like(w);
      gemm(ctx, {.m = w.dim(0), .n = w.dim(1), .k = rows(x), .transpose_a = true, .beside = needs[0]}, dy, x, grads[1],
           {}, bias ? grads[2] : Tensor());
    } else if (bias) {
      sum_rows(ctx, dy, grads[2]);
    }
    if (needs[0]) {
      grads[0] = Tensor::empty_like(x);
      gemm(ctx, {.m = rows(x), .n = w.dim(1), .k = w.dim(0)}, dy, w, grads[0]);
    }
    return grads;
  }

 private:
  static int64_t rows(const Tensor& x) { return x.shape().product(0, x.rank() - 1); }

  Saved x_, w_;
};

std::vector<Sample> samples() {
  std::vector<Sample> samples;
  const auto add = [&](const Shape& x, int64_t out, bool bias) {
    const uint64_t stream = samples.size() * 3;
    std::vector<Tensor> in{sample_signed(x, stream, 0.1, 2), sample_signed({out, x.back()}, stream + 1, 0.1, 2)};
    if (bias) in.push_back(sample_signed({out}, stream + 2, 0.1, 2));
    samples.push_back({str("x ", x, ", out ", out, bias ? ", bias" : ""), in, [](std::span<const Var> v) {
                         return v.size() > 2 ? linear(v[0], v[1], v[2]) : linear(v[0], v[1]);
                       }});
  };
  add({2, 3}, 5, true);
  add({1, 7}, 1, false);
  add({1, 33}, 17, true);
  add({2, 3, 5}, 4, true);
  add({9}, 2, true);
  add({0, 3}, 2, true);
  return samples;
}
}  // namespace

const OpInfo linear_info{"linear", AmpTag::allow, "tensor cores: half in and out, FP32 accumulation", samples};

Var linear(const Var& x, const Var& weight, const Var& bias) {
  return bias ? apply(Linear{}, {x, weight, bias}) : apply(Linear{}, {x, weight});
}

}  // namespace ht
