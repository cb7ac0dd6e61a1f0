// y_i = x_i / (1 - p) with probability 1 - p, else 0;  dx = dy under the same mask, drawn again from its Philox stream.
#include "ops/dropout.h"

#include "core/build.h"
#include "core/parallel.h"
#include "ops/ops.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Dropout final : Op {
  explicit Dropout(double probability) : p(probability) {}
  const OpInfo& info() const override { return dropout_info; }

  TensorSpec infer(Inputs in) const override { return in[0].spec(); }

  Tensor forward(Context& ctx, Inputs in, const TensorSpec&) override {
    mask = {ctx.generator().next(), static_cast<uint64_t>(p * 0x1p32), p < 1 ? 1 / (1 - p) : 0};
    return masked(ctx, in[0]);
  }

  Grads backward(Context& ctx, const Tensor& dy, const std::vector<bool>&) override { return {masked(ctx, dy)}; }

  Tensor masked(Context& ctx, const Tensor& x) const {
    const Tensor y = Tensor::empty_like(x);
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) dropout_cuda(ctx, mask, x, y);
    }
    if (!ctx.is_cuda()) {
      dispatch_floating(x.dtype(), name(), [&]<class T>() {
        using A = acc_t<T>;
        const T* from = x.data<T>();
        T* to = y.data<T>();
        const int64_t n = x.numel();
        parallel_for((n + 3) / 4, 1 << 10, [=, m = mask](int64_t begin, int64_t end) {
          for (int64_t block = begin; block < end; ++block) {
            const Philox4 bits = m.stream.block(static_cast<uint64_t>(block));
            for (int64_t i = 4 * block; i < std::min(n, 4 * block + 4); ++i)
              to[i] = m.keeps(bits[static_cast<size_t>(i % 4)])
                          ? static_cast<T>(static_cast<A>(from[i]) * static_cast<A>(m.scale))
                          : T(0);
          }
        });
      });
    }
    return y;
  }

  double p;
  DropoutMask mask;
};

std::vector<Sample> samples() {
  std::vector<Sample> all;
  for (const auto& [shape, p] : {std::pair{Shape{7}, 0.5}, std::pair{Shape{3, 5}, 0.2}, std::pair{Shape{1, 4, 3}, 0.9},
                                 std::pair{Shape{5}, 1.0}, std::pair{Shape{0, 3}, 0.5}})
    all.push_back({str("x ", shape, " p ", p), {sample_signed(shape, 0, 0.1, 2)}, [p = p](std::span<const Var> in) {
                     Context::of(in[0].device()).generator().manual_seed(11);  // the same mask in every call
                     return dropout(in[0], p);
                   }});
  return all;
}
}  // namespace

const OpInfo dropout_info{"dropout", AmpTag::leave, "a mask and one scale fit half", samples};

Var dropout(const Var& x, double p, bool training) {
  check(p >= 0 && p <= 1, "dropout: p is ", p, " but must lie in [0, 1] (", Named{"x", x.value()}, ")");
  check(is_floating(x.dtype()), "dropout: the input must be floating; cast() it first (", Named{"x", x.value()}, ")");
  return training ? apply(Dropout(p), {x}) : x;
}

}  // namespace ht
