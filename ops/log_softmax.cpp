// y_j = x_j - m - log sum_k e^(x_k - m), m the maximum along the axis;  dx = dy - e^y sum_k dy_k. Backward reads y.
#include "ops/ops.h"
#include "ops/registry.h"
#include "ops/samples.h"
#include "ops/softmax.h"

namespace ht {

namespace {
template <class T>
void forward_cpu(const SoftmaxPlan& p, const T* from, T* to) {
  using A = acc_t<T>;
  for_softmax_blocks(p, [&p, from, to](int64_t first, int64_t width) {
    const T* x = from + first;
    T* y = to + first;
    const SoftmaxStats<A> s = softmax_stats(x, p, width);
    A log_sum[kSoftmaxWidth];
    for (int64_t c = 0; c < width; ++c) log_sum[c] = std::log1p(s.rest[c]);
    for (int64_t j = 0; j < p.n; ++j) {
      for (int64_t c = 0; c < width; ++c) {
        const int64_t i = j * p.inner + c;
        y[i] = static_cast<T>(static_cast<A>(x[i]) - s.max[c] - log_sum[c]);
      }
    }
  });
}

template <class T>
void backward_cpu(const SoftmaxPlan& p, const T* y0, const T* dy0, T* dx0) {
  using A = acc_t<T>;
  for_softmax_blocks(p, [=, &p](int64_t first, int64_t width) {
    const T *y = y0 + first, *dy = dy0 + first;
    T* dx = dx0 + first;
    A sum[kSoftmaxWidth] = {};
    for (int64_t j = 0; j < p.n; ++j)
      for (int64_t c = 0; c < width; ++c) sum[c] += static_cast<A>(dy[j * p.inner + c]);
    for (int64_t j = 0; j < p.n; ++j) {
      for (int64_t c = 0; c < width; ++c) {
        const int64_t i = j * p.inner + c;
        dx[i] = static_cast<T>(static_cast<A>(dy[i]) - std::exp(static_cast<A>(y[i])) * sum[c]);
      }
    }
  });
}

struct LogSoftmax final : Op {
  explicit LogSoftmax(int a) : axis(a) {}
  const OpInfo& info() const override { return log_softmax_info; }

  TensorSpec infer(Inputs in) const override {
    plan_softmax(name(), in[0], axis);
    return in[0].spec();
  }

  Tensor forward(Context& ctx, Inputs in, const TensorSpec& out) override {
    const Tensor x = in[0], y = Tensor::empty(out, ctx.device());
    plan = plan_softmax(name(), x, axis);
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) softmax_forward_cuda(ctx, true, plan, x, y);
    }
    if (!ctx.is_cuda())
      dispatch_floating(out.dtype, name(), [&]<class T>() { forward_cpu(plan, x.data<T>(), y.data<T>()); });
    saved_y = y;
    return y;
  }

  Grads backward(Context& ctx, const Tensor& dy, const std::vector<bool>&) override {
    const Tensor dx = Tensor::empty_like(dy), y = *saved_y;
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) softmax_backward_cuda(ctx, true, plan, y, dy, dx);
    }
    if (!ctx.is_cuda()) {
      dispatch_floating(dy.dtype(), name(),
                        [&]<class T>() { backward_cpu(plan, y.data<T>(), dy.data<T>(), dx.data<T>()); });
    }
    return {dx};
  }

  int axis;
  SoftmaxPlan plan;
  Saved saved_y;
};

std::vector<Sample> samples() {
  return axis_samples([](const Var& x, int axis) { return log_softmax(x, axis); });
}
}  // namespace

const OpInfo log_softmax_info{"log_softmax", AmpTag::deny, "exponentials and their sum need FP32's range", samples};

Var log_softmax(const Var& x, int axis) { return apply(LogSoftmax(axis), {x}); }

}  // namespace ht
