// Row i of log-probabilities x with label t_i: y = sum or mean of -x[i, t_i];  dx[i, t_i] = -w dy, w = 1 or 1 / n, and
// 0 elsewhere.
#include "core/build.h"
#include "ops/class_loss.h"
#include "ops/ops.h"
#include "ops/reduce.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
constexpr std::string_view kX = "log_probabilities";

struct NllLoss final : Op {
  explicit NllLoss(Reduction r) : reduction(r) {}
  const OpInfo& info() const override { return nll_loss_info; }

  bool widen(size_t k) override {
    widened = widened || k == 0;
    return k == 0;
  }

  TensorSpec infer(Inputs in) const override { return infer_class_loss(name(), kX, in, widened); }

  Tensor forward(Context& ctx, Inputs in, const TensorSpec& out) override {
    const Tensor x = in[0], t = ctx.is_cuda() ? in[1] : in[1].to(DType::i64), loss = Tensor::empty(out, ctx.device());
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) nll_loss_forward_cuda(ctx, reduction, x, t, loss);
    }
    if (!ctx.is_cuda()) {
      check_labels(name(), kX, x, t);
      dispatch_floating(x.dtype(), name(), [&]<class T>() {
        using A = acc_t<T>;
        const T* from = x.data<T>();
        const int64_t *label = t.data<int64_t>(), n = x.dim(0), classes = x.dim(1);
        const double total =
            sum_elements<A>(n, [=](int64_t i) { return -static_cast<A>(from[i * classes + label[i]]); });
        const double scale = reduction == Reduction::mean ? static_cast<double>(n) : 1;
        loss.fill_(static_cast<double>(static_cast<A>(total / scale)));
      });
    }
    x_spec = x.spec();
    labels = t;
    return loss;
  }

  Grads backward(Context& ctx, const Tensor& dy, const std::vector<bool>&) override {
    const Tensor dx = Tensor::zeros(x_spec.shape, x_spec.dtype, ctx.device());
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) nll_loss_backward_cuda(ctx, reduction, *labels, dy, dx);
    }
    if (!ctx.is_cuda()) {
      dispatch_floating(dx.dtype(), name(), [&]<class T>() {
        const int64_t* label = labels->data<int64_t>();
        const int64_t n = dx.dim(0), classes = dx.dim(1);
        const T g = static_cast<T>(static_cast<acc_t<T>>(-dy.item() * reduction_weight(reduction, n)));
        for (int64_t i = 0; i < n; ++i) dx.data<T>()[i * classes + label[i]] = g;
      });
    }
    return {dx, {}};
  }

  Reduction reduction;
  bool widened = false;
  TensorSpec x_spec;
  Saved labels;
};

std::vector<Sample> samples() {
  std::vector<Sample> all;
  for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
    for (const Shape& shape : {Shape{1, 3}, Shape{4, 5}, Shape{3, 1}}) {
      const Tensor labels = sample_labels(shape[0], shape[1], 1);
      all.push_back({str("x ", shape, reduction == Reduction::mean ? " mean" : " sum"),
                     {sample_uniform(shape, 0, -4, -0.1)},
                     [=](std::span<const Var> in) { return nll_loss(in[0], labels.to(in[0].device()), reduction); }});
    }
  }
  return all;
}
}  // namespace

const OpInfo nll_loss_info{"nll_loss", AmpTag::deny, "a sum over the batch, and 1 / n in its gradient", samples};

Var nll_loss(const Var& log_probabilities, const Var& labels, Reduction reduction) {
  return apply(NllLoss(reduction), {log_probabilities, labels});
}

}  // namespace ht
