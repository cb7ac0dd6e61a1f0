// Row i with label t and smoothing e over C classes: q_j = e / C + (1 - e)[j == t],
//   loss_i = -sum_j q_j logp_j,  logp = x - m - log sum_k e^(x_k - m);  y = sum or mean of loss_i;
//   dx_ij = w dy (e^logp_j - q_j), w = 1 or 1 / n; for j == t by expm1, which keeps the digits of p - 1.
// Backward reads the logits and two numbers a row (m and the log of the sum); probabilities are never stored.
#include "core/build.h"
#include "ops/class_loss.h"
#include "ops/ops.h"
#include "ops/reduce.h"
#include "ops/registry.h"
#include "ops/samples.h"
#include "ops/softmax.h"

namespace ht {

namespace {
struct CrossEntropy final : Op {
  explicit CrossEntropy(const CrossEntropyOptions& o) : options(o) {}
  const OpInfo& info() const override { return cross_entropy_info; }

  bool widen(size_t k) override {
    widened = widened || k == 0;
    return k == 0;
  }

  TensorSpec infer(Inputs in) const override { return infer_class_loss(name(), "logits", in, widened); }

  Tensor forward(Context& ctx, Inputs in, const TensorSpec& out) override {
    const Tensor x = in[0], t = ctx.is_cuda() ? in[1] : in[1].to(DType::i64), loss = Tensor::empty(out, ctx.device());
    const Tensor s =
        Tensor::empty({x.dim(0), 2}, x.dtype() == DType::f64 ? DType::f64 : DType::f32, ctx.device());  // [n, 2]
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) cross_entropy_forward_cuda(ctx, options, x, t, s, loss);
    }
    if (!ctx.is_cuda()) {
      check_labels(name(), "logits", x, t);
      dispatch_floating(out.dtype, name(), [&]<class T>() { forward_cpu<T>(x.to(out.dtype), t, s, loss); });
    }
    logits = x;
    labels = t;
    stats = s;
    return loss;
  }

  Grads backward(Context& ctx, const Tensor& dy, const std::vector<bool>&) override {
    const Tensor x = *logits;
    const Tensor dx = Tensor::empty(x.shape(), ctx.is_cuda() ? x.dtype() : dy.dtype(), ctx.device());
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) cross_entropy_backward_cuda(ctx, options, x, *labels, *stats, dy, dx);
    }
    if (!ctx.is_cuda())
      dispatch_floating(dy.dtype(), name(), [&]<class T>() { backward_cpu<T>(x.to(dy.dtype()), dy, dx); });
    return {dx.to(x.dtype()), {}};
  }

  template <class T>
  void forward_cpu(const Tensor& x, const Tensor& t, const Tensor& s, const Tensor& loss) const {
    using A = acc_t<T>;
    const int64_t n = x.dim(0), classes = x.dim(1);
    const T* from = x.data<T>();
    const int64_t* label = t.data<int64_t>();
    A* stat = s.data<A>();
    const Tensor losses = Tensor::empty({n}, s.dtype());
    A* row_loss = losses.data<A>();
    const A e = static_cast<A>(options.label_smoothing);
    parallel_for(n, std::max<int64_t>(1, 2048 / std::max<int64_t>(classes, 1)), [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* row = from + i * classes;
        const SoftmaxStats<A> found = softmax_stats(row, SoftmaxPlan{1, classes, 1}, 1);
        const A m = found.max[0], log_sum = std::log1p(found.rest[0]);
        stat[2 * i] = m;
        stat[2 * i + 1] = log_sum;
        row_loss[i] = (A(1) - e) * (log_sum - (static_cast<A>(row[label[i]]) - m));
        if (e > 0) {  // apart: a logit of -inf would make 0 * inf of it
          const A sum = lane_sum<A>(classes, [&](int64_t j) { return static_cast<A>(row[j]) - m; });
          row_loss[i] += e * (log_sum - sum / static_cast<A>(classes));
        }
      }
    });
    const double total = sum_elements<A>(n, [row_loss](int64_t i) { return row_loss[i]; });
    const double scale = options.reduction == Reduction::mean ? static_cast<double>(n) : 1;
    *loss.data<T>() = static_cast<T>(static_cast<A>(total / scale));
  }

  template <class T>
  void backward_cpu(const Tensor& logits_wide, const Tensor& dy, const Tensor& dx) const {
    using A = acc_t<T>;
    const int64_t n = dx.dim(0), classes = dx.dim(1);
    const T* x = logits_wide.data<T>();
    const int64_t* label = labels->data<int64_t>();
    const A* stat = stats->data<A>();
    T* to = dx.data<T>();
    const A e = static_cast<A>(options.label_smoothing), even = e / static_cast<A>(classes);
    const A g = static_cast<A>(dy.item() * reduction_weight(options.reduction, n));
    parallel_for(n, std::max<int64_t>(1, 2048 / std::max<int64_t>(classes, 1)), [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const A m = stat[2 * i], log_sum = stat[2 * i + 1];
        for (int64_t k = i * classes; k < (i + 1) * classes; ++k)
          to[k] = static_cast<T>(g * (fn::exp(static_cast<A>(x[k]) - m - log_sum) - even));
        const int64_t k = i * classes + label[i];
        to[k] = static_cast<T>(g * (std::expm1(static_cast<A>(x[k]) - m - log_sum) + (e - even)));
      }
    });
  }

  CrossEntropyOptions options;
  bool widened = false;
  Saved logits, labels, stats;
};

std::vector<Sample> samples() {
  std::vector<Sample> all;
  for (const CrossEntropyOptions& options :
       {CrossEntropyOptions{}, CrossEntropyOptions{0.1, Reduction::mean}, CrossEntropyOptions{0.3, Reduction::sum}}) {
    for (const Shape& shape : {Shape{1, 3}, Shape{4, 5}, Shape{3, 1}, Shape{7, 10}}) {
      const Tensor labels = sample_labels(shape[0], shape[1], 1);
      all.push_back(
          {str("logits ", shape, " smoothing ", options.label_smoothing),
           {sample_signed(shape, 0, 0.1, 3)},
           [=](std::span<const Var> in) { return cross_entropy(in[0], labels.to(in[0].device()), options); }});
    }
  }
  return all;
}
}  // namespace

const OpInfo cross_entropy_info{"cross_entropy", AmpTag::deny,
                                "small losses and p - 1 need FP32: at batch 128 half has 24 % error", samples};

Var cross_entropy(const Var& logits, const Var& labels, const CrossEntropyOptions& options) {
  check(options.label_smoothing >= 0 && options.label_smoothing < 1, "cross_entropy: label_smoothing is ",
        options.label_smoothing, " but must lie in [0, 1) (", Named{"logits", logits.value()}, ")");
  return apply(CrossEntropy(options), {logits, labels});
}

}  // namespace ht
