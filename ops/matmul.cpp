// y = a b;  da = dy b^T, db = a^T dy, for each matrix of the batch. A b without leading axes is shared: the batch then
// folds into the rows of a, and db sums over it by itself.
#include "ops/gemm.h"
#include "ops/ops.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Matmul final : Op {
  const OpInfo& info() const override { return matmul_info; }

  TensorSpec infer(Inputs in) const override {
    const Tensor &a = in[0], &b = in[1];
    const auto need = [&](bool ok, const auto&... parts) {
      check(ok, "matmul: ", parts..., " (", Named{"a", a}, ", ", Named{"b", b}, ")");
    };
    need(is_floating(a.dtype()) && is_floating(b.dtype()), "the inputs must be floating; cast() them first");
    need(a.dtype() == b.dtype(), "a is ", a.dtype(), " but b is ", b.dtype(), "; cast() one of them");
    need(a.rank() >= 2, "a has rank ", a.rank(), " but needs at least 2; reshape() it");
    need(b.rank() >= 2, "b has rank ", b.rank(), " but needs at least 2; reshape() it");
    need(a.dim(-1) == b.dim(-2), "a has ", a.dim(-1), " columns but b has ", b.dim(-2), " rows");
    bool fits = b.rank() == 2 || a.rank() == b.rank();
    for (int i = 0; fits && b.rank() > 2 && i < b.rank() - 2; ++i) fits = a.dim(i) == b.dim(i);
    need(fits, "the leading axes differ; they must be equal, or b must have none");
    return {a.shape().with(-1, b.dim(-1)), a.dtype()};
  }

  // The product of one call; `batch` matrices when b has leading axes.
  GemmShape gemm_shape(const Tensor& a, const Tensor& b) const {
    const bool shared = b.rank() == 2;
    const int64_t batch = shared ? 1 : b.shape().product(0, b.rank() - 2);
    const int64_t m = shared ? a.shape().product(0, a.rank() - 1) : a.dim(-2);
    return {.m = m, .n = b.dim(-1), .k = a.dim(-1), .batch = batch};
  }

  Tensor forward(Context& ctx, Inputs in, const TensorSpec& out) override {
    const Tensor y = Tensor::empty(out, ctx.device());
    gemm(ctx, gemm_shape(in[0], in[1]), in[0], in[1], y);
    a_ = in[0], b_ = in[1];
    return y;
  }

  Grads backward(Context& ctx, const Tensor& dy, const std::vector<bool>& needs) override {
    const Tensor &a = *a_, &b = *b_;
    const GemmShape s = gemm_shape(a, b);
    Grads grads(2);
    if (needs[0]) {
      grads[0] = Tensor::empty_like(a);
      gemm(ctx, {.m = s.m, .n = s.k, .k = s.n, .transpose_b = true, .batch = s.batch}, dy, b, grads[0]);
    }
    if (needs[1]) {
      grads[1] = Tensor::empty_like(b);
      gemm(ctx, {.m = s.k, .n = s.n, .k = s.m, .transpose_a = true, .batch = s.batch}, a, dy, grads[1]);
    }
    return grads;
  }

 private:
  Saved a_, b_;
};

std::vector<Sample> samples() {
  std::vector<Sample> samples;
  const auto add = [&](const Shape& a, const Shape& b) {
    const uint64_t stream = samples.size() * 2;
    samples.push_back({str("a ", a, ", b ", b),
                       {sample_signed(a, stream, 0.1, 2), sample_signed(b, stream + 1, 0.1, 2)},
                       [](std::span<const Var> in) { return matmul(in[0], in[1]); }});
  };
  add({2, 3}, {3, 5});
  add({1, 1}, {1, 1});
  add({7, 9}, {9, 1});
  add({1, 33}, {33, 17});
  add({3, 2, 5}, {3, 5, 4});
  add({2, 1, 3, 5}, {2, 1, 5, 7});
  add({2, 3, 5}, {5, 4});
  add({0, 3}, {3, 2});
  add({2, 0}, {0, 3});
  return samples;
}
}  // namespace

const OpInfo matmul_info{"matmul", AmpTag::allow, "tensor cores: half in and out, FP32 accumulation", samples};

Var matmul(const Var& a, const Var& b) { return apply(Matmul{}, {a, b}); }

}  // namespace ht
