// The losses over elements: the formulas, shared by CPU and CUDA, and the one Op class over them.
// y = sum or mean of f(x, t);  dx = w dy f.dx(x, t), dt = w dy f.dt(x, t), w = 1 or 1 / n. T is float or double.
// Under amp x may stay half beside an FP32 target (widen): the kernels compute in FP32 anyway.
#pragma once

#include <cmath>

#include "autograd/var.h"
#include "core/build.h"
#include "core/parallel.h"
#include "ops/ops.h"
#include "ops/reduce.h"

namespace ht {

namespace fn {
struct Mse {
  template <class T>
  HT_HD T f(T x, T t) const {
    return (x - t) * (x - t);
  }
  template <class T>
  HT_HD T dx(T x, T t) const {
    return T(2) * (x - t);
  }
  template <class T>
  HT_HD T dt(T x, T t) const {
    return T(2) * (t - x);
  }
};

struct L1 {
  template <class T>
  HT_HD T f(T x, T t) const {
    return std::abs(x - t);
  }
  template <class T>
  HT_HD T dx(T x, T t) const {  // NaN stays NaN
    return x > t ? T(1) : x < t ? T(-1) : (x - t) * T(0);
  }
  template <class T>
  HT_HD T dt(T x, T t) const {
    return -dx(x, t);
  }
};

// A parabola within beta of the target, a line outside (Huber's loss / beta).
struct SmoothL1 {
  double beta = 1;
  template <class T>
  HT_HD T f(T x, T t) const {
    const T d = std::abs(x - t), b = static_cast<T>(beta);
    return d < b ? T(0.5) * d * d / b : d - T(0.5) * b;
  }
  template <class T>
  HT_HD T dx(T x, T t) const {
    const T d = x - t, b = static_cast<T>(beta);
    return std::abs(d) < b ? d / b : L1{}.dx(x, t);
  }
  template <class T>
  HT_HD T dt(T x, T t) const {
    return -dx(x, t);
  }
};

// On probabilities. The logarithms stop at -100 and the gradient's divisor at 1e-12, as PyTorch's.
struct BinaryCrossEntropy {
  template <class T>
  HT_HD static T clamped(T log) {
    return log < T(-100) ? T(-100) : log;
  }
  template <class T>
  HT_HD T f(T x, T t) const {
    return (t - T(1)) * clamped(std::log1p(-x)) - t * clamped(std::log(x));
  }
  template <class T>
  HT_HD T dx(T x, T t) const {
    const T d = (T(1) - x) * x, least = T(1e-12);
    return (x - t) / (d < least ? least : d);
  }
  template <class T>
  HT_HD T dt(T x, T) const {
    return clamped(std::log1p(-x)) - clamped(std::log(x));
  }
};

// -t log s(x) - (1 - t) log(1 - s(x)), s the sigmoid, without ever forming s near 0 or 1.
struct BinaryCrossEntropyWithLogits {
  template <class T>
  HT_HD T f(T x, T t) const {
    return (x > T(0) ? x : T(0)) - x * t + std::log1p(std::exp(-std::abs(x)));
  }
  template <class T>
  HT_HD T dx(T x, T t) const {
    const T e = std::exp(-std::abs(x));
    return x < T(0) ? e / (T(1) + e) - t : (T(1) - t) - e / (T(1) + e);  // s - t, digits kept near 1 too
  }
  template <class T>
  HT_HD T dt(T x, T) const {
    return -x;
  }
};
}  // namespace fn

// The CUDA launchers, instantiated in ops/elementwise_loss.cu. All are of x's dtype or, with a half x, x and dx are and
// the rest is FP32. An undefined dx or dt is not wanted; forward makes a dx of the seed.
template <class Fn>
void elementwise_loss_forward_cuda(Context& ctx, Fn fn, Reduction reduction, const Tensor& x, const Tensor& target,
                                   const Tensor& loss, const Tensor& seed, const Tensor& dx);
template <class Fn>
void elementwise_loss_backward_cuda(Context& ctx, Fn fn, Reduction reduction, const Tensor& x, const Tensor& target,
                                    const Tensor& dy, const Tensor& dx, const Tensor& dt);

template <class Fn>
class ElementwiseLoss : public Op {
 public:
  explicit ElementwiseLoss(Reduction r, Fn f = {}) : fn(f), reduction(r) {}

  bool widen(size_t k) override {
    widened = widened || k == 0;
    return k == 0;
  }

  TensorSpec infer(Inputs in) const override {
    const Tensor &x = in[0], &t = in[1];
    const DType dtype = widened && is_half(x.dtype()) ? DType::f32 : x.dtype();
    const auto fits = [&](bool ok, std::string_view fact) {
      check(ok, name(), ": ", fact, " (", Named{"x", x}, ", ", Named{"target", t}, ")");
    };
    fits(is_floating(x.dtype()), "the input must be floating; cast() it first");
    fits(dtype == t.dtype(), "dtypes differ; cast() the target to the input's");
    fits(x.shape() == t.shape(), "the target must have the input's shape; reshape() it");
    return {{}, dtype};
  }

  Tensor forward(Context& ctx, Inputs in, const TensorSpec& out) override {
    const Tensor x = in[0], t = in[1], loss = Tensor::empty(out, ctx.device());
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) {
        constexpr int64_t kSmall = 1 << 16;  // elements, whose gradient costs less than a launch
        if (x.numel() <= kSmall && out.dtype == DType::f32 && grad_enabled())
          seed = expected_seed(out.dtype, ctx.device());
        if (seed) early_dx = Tensor::empty_like(x), seed_version = seed.version();
        elementwise_loss_forward_cuda(ctx, fn, reduction, x, t, loss, seed, early_dx);
      }
    }
    if (!ctx.is_cuda()) {
      const Tensor wide = x.to(t.dtype());  // x itself unless widened: here a bulk conversion is the faster way
      dispatch_floating(t.dtype(), name(), [&]<class T>() {
        using A = acc_t<T>;
        const T *a = wide.data<T>(), *b = t.data<T>();
        const double total = sum_elements<A>(
            x.numel(), [=, fn = fn](int64_t i) { return fn.f(static_cast<A>(a[i]), static_cast<A>(b[i])); });
        const double scale = reduction == Reduction::mean ? static_cast<double>(x.numel()) : 1;
        *loss.data<T>() = static_cast<T>(static_cast<A>(total / scale));
      });
    }
    saved_x = x;
    saved_target = t;
    return loss;
  }

  Grads backward(Context& ctx, const Tensor& dy, const std::vector<bool>& needs) override {
    const Tensor x = *saved_x, t = *saved_target;
    const bool early = early_dx && dy.same_storage(seed) && seed.version() == seed_version;
    if (early && !needs[1]) return {early_dx, {}};
    Tensor dx, dt;
    if (needs[0]) dx = Tensor::empty(x.shape(), ctx.is_cuda() ? x.dtype() : t.dtype(), ctx.device());
    if (needs[1]) dt = Tensor::empty_like(t);
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) elementwise_loss_backward_cuda(ctx, fn, reduction, x, t, dy, dx, dt);
    }
    if (!ctx.is_cuda()) {
      const Tensor wide = x.to(t.dtype());
      dispatch_floating(t.dtype(), name(), [&]<class T>() {
        using A = acc_t<T>;
        const T *a = wide.data<T>(), *b = t.data<T>();
        const double n = reduction == Reduction::mean ? static_cast<double>(x.numel()) : 1;
        const A g = static_cast<A>(dy.item() / n);
        const auto fill = [&](const Tensor& grad, auto slope) {
          if (!grad.defined()) return;
          T* to = grad.data<T>();
          parallel_for(x.numel(), 1 << 13, [=](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i)
              to[i] = static_cast<T>(g * slope(static_cast<A>(a[i]), static_cast<A>(b[i])));
          });
        };
        fill(dx, [fn = fn](A xi, A ti) { return fn.dx(xi, ti); });
        fill(dt, [fn = fn](A xi, A ti) { return fn.dt(xi, ti); });
      });
      if (dx.defined()) dx = dx.to(x.dtype());
    }
    return {dx, dt};
  }

 protected:
  Fn fn;
  Reduction reduction;
  bool widened = false;
  Saved saved_x, saved_target;
  // On CUDA: the gradient of x, made by forward in case backward starts with this seed.
  Tensor early_dx, seed;
  uint64_t seed_version = 0;
};

// The standard gradcheck cases, of both inputs: target uniform in [low, high) and x that or, with a `gap`, at a
// distance in [gap, gap + 1) from it (off a kink).
std::vector<Sample> elementwise_loss_samples(Var (*f)(const Var&, const Var&, Reduction), double low, double high,
                                             double gap = 0);

}  // namespace ht
