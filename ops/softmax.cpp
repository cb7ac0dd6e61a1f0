// y_j = e^(x_j - m) / sum_k e^(x_k - m), m the maximum along the axis;  dx = y (dy - sum_k dy_k y_k). Backward reads y.
#include "ops/softmax.h"

#include "ops/ops.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
template <class T>
void forward_cpu(const SoftmaxPlan& p, const T* from, T* to) {
  using A = acc_t<T>;
  for_softmax_blocks(p, [&p, from, to](int64_t first, int64_t width) {
    const T* x = from + first;
    T* y = to + first;
    const SoftmaxStats<A> s = softmax_stats(x, p, width);
    for (int64_t j = 0; j < p.n; ++j) {
      for (int64_t c = 0; c < width; ++c) {
        const int64_t i = j * p.inner + c;
        y[i] = static_cast<T>(std::exp(static_cast<A>(x[i]) - s.max[c]) / (A(1) + s.rest[c]));
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
    A dot[kSoftmaxWidth] = {};
    for (int64_t j = 0; j < p.n; ++j)
      for (int64_t c = 0; c < width; ++c)
        dot[c] += static_cast<A>(dy[j * p.inner + c]) * static_cast<A>(y[j * p.inner + c]);
    for (int64_t j = 0; j < p.n; ++j) {
      for (int64_t c = 0; c < width; ++c) {
        const int64_t i = j * p.inner + c;
        dx[i] = static_cast<T>(static_cast<A>(y[i]) * (static_cast<A>(dy[i]) - dot[c]));
      }
    }
  });
}

struct Softmax final : Op {
  explicit Softmax(int a) : axis(a) {}
  const OpInfo& info() const override { return softmax_info; }

  TensorSpec infer(Inputs in) const override {
    plan_softmax(name(), in[0], axis);
    return in[0].spec();
  }

  Tensor forward(Context& ctx, Inputs in, const TensorSpec& out) override {
    const Tensor x = in[0], y = Tensor::empty(out, ctx.device());
    plan = plan_softmax(name(), x, axis);
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) softmax_forward_cuda(ctx, false, plan, x, y);
    }
    if (!ctx.is_cuda())
      dispatch_floating(out.dtype, name(), [&]<class T>() { forward_cpu(plan, x.data<T>(), y.data<T>()); });
    saved_y = y;
    return y;
  }

  Grads backward(Context& ctx, const Tensor& dy, const std::vector<bool>&) override {
    const Tensor dx = Tensor::empty_like(dy), y = *saved_y;
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) softmax_backward_cuda(ctx, false, plan, y, dy, dx);
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
  return axis_samples([](const Var& x, int axis) { return softmax(x, axis); });
}
}  // namespace

const OpInfo softmax_info{"softmax", AmpTag::deny, "exponentials and their sum need FP32's range", samples};

Var softmax(const Var& x, int axis) { return apply(Softmax(axis), {x}); }

}  // namespace ht
