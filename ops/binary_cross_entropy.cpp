// y = sum or mean of -t log x - (1 - t) log(1 - x), logarithms clamped at -100;
// dx = w dy (x - t) / (x (1 - x)), the divisor at least 1e-12, dt = w dy (log(1 - x) - log x), w = 1 or 1 / n.
#include "ops/elementwise_loss.h"
#include "ops/ops.h"
#include "ops/registry.h"

namespace ht {

namespace {
struct BinaryCrossEntropy final : ElementwiseLoss<fn::BinaryCrossEntropy> {
  using ElementwiseLoss::ElementwiseLoss;
  const OpInfo& info() const override { return binary_cross_entropy_info; }

  Tensor forward(Context& ctx, Inputs in, const TensorSpec& out) override {
    if (!ctx.is_cuda()) dispatch_floating(in[0].dtype(), name(), [&]<class T>() { check_range<T>(in[0], in[1]); });
    return ElementwiseLoss::forward(ctx, in, out);
  }

  // NaN passes: it shows in the loss.
  template <class T>
  void check_range(const Tensor& x, const Tensor& target) const {
    const T* p = x.data<T>();
    for (int64_t i = 0; i < x.numel(); ++i) {
      const auto v = static_cast<acc_t<T>>(p[i]);
      check(!(v < 0 || v > 1), name(), ": x[", i, "] is ", v,
            ", not a probability in [0, 1]; apply sigmoid(), or use binary_cross_entropy_with_logits (", Named{"x", x},
            ", ", Named{"target", target}, ")");
    }
  }
};

std::vector<Sample> samples() { return elementwise_loss_samples(binary_cross_entropy, 0.1, 0.9); }
}  // namespace

const OpInfo binary_cross_entropy_info{
    "binary_cross_entropy", AmpTag::forbid,
    "its gradient (up to 1e12) does not fit half; use binary_cross_entropy_with_logits", samples};

Var binary_cross_entropy(const Var& x, const Var& target, Reduction reduction) {
  return apply(BinaryCrossEntropy(reduction), {x, target});
}

}  // namespace ht
