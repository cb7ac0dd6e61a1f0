#include "optim/clip.h"

#include <cmath>
#include <vector>

#include "core/build.h"
#include "optim/blocks.h"

namespace ht::optim {

namespace {
std::vector<Tensor> gradients(std::string_view who, std::span<const Var> params) {
  std::vector<Tensor> grads;
  for (const Var& p : params) {
    check(p.defined(), who, ": parameter ", &p - params.data(), " is undefined");
    check(!p.state()->grad_scaled, who, ": the gradients are multiplied by amp's loss scale until step(); let the ",
          "optimizer clip, set_clip({.norm = ...}) or {.value = ...}, or call amp.unscale() before");
    if (!p.grad_slot().defined()) continue;
    grads.push_back(p.grad_slot());
    check(grads.back().device() == grads.front().device(), who, ": gradients are on two devices (",
          Named{"first", grads.front()}, ", ", Named{"grad", grads.back()}, "); clip them a device");
  }
  return grads;
}

// A sum a block, then the blocks in order: the same bits for any number of threads. In double, so that no square of a
// float overflows; in lanes, so that it vectorises.
template <class A>
double sum_of_squares_as(const Tensor& grad) {
  const int64_t blocks = (grad.numel() + kBlock - 1) / kBlock;
  std::vector<double> sums(static_cast<size_t>(blocks));
  parallel_for(blocks, 8, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      constexpr int64_t kLanes = 16;
      A buffer[kBlock];
      const int64_t at = b * kBlock, n = std::min(kBlock, grad.numel() - at);
      const A* g = load(grad, at, n, buffer);
      double lanes[kLanes] = {}, sum = 0;
      int64_t i = 0;
      for (; i + kLanes <= n; i += kLanes)
        for (int64_t k = 0; k < kLanes; ++k) lanes[k] += static_cast<double>(g[i + k]) * static_cast<double>(g[i + k]);
      for (; i < n; ++i) lanes[0] += static_cast<double>(g[i]) * static_cast<double>(g[i]);
      for (const double lane : lanes) sum += lane;
      sums[static_cast<size_t>(b)] = sum;
    }
  });
  double sum = 0;
  for (const double s : sums) sum += s;
  return sum;
}

// g = f(g) for every element, in the gradient's accumulation type.
template <class F>
void transform(const Tensor& grad, F&& f) {
  const auto run = [&]<class A>() {
    for_blocks(grad.numel(), [&](int64_t at, int64_t n) {
      A buffer[kBlock];
      A* g = load(grad, at, n, buffer);
      for (int64_t i = 0; i < n; ++i) g[i] = f(g[i]);
      store(g, grad, at, n);
    });
  };
  grad.dtype() == DType::f64 ? run.template operator()<double>() : run.template operator()<float>();
  grad.bump_version();
}
}  // namespace

double sum_of_squares(const Tensor& grad) {
  return grad.dtype() == DType::f64 ? sum_of_squares_as<double>(grad) : sum_of_squares_as<float>(grad);
}

Tensor clip_grad_norm_(std::span<const Var> params, double max_norm) {
  check(max_norm >= 0, "clip_grad_norm_: max_norm is ", max_norm, "; it must be at least 0");
  const std::vector<Tensor> grads = gradients("clip_grad_norm_", params);
  if constexpr (kCudaBuild) {
    if (!grads.empty() && grads.front().device().is_cuda()) return clip_grad_norm_cuda(grads, max_norm);
  }
  double squares = 0;
  for (const Tensor& g : grads) squares += sum_of_squares(g);
  const double norm = std::sqrt(squares), factor = max_norm / (norm + 1e-6);
  if (!(factor >= 1) && !std::isinf(max_norm))
    for (const Tensor& g : grads) transform(g, [=]<class A>(A x) { return x * static_cast<A>(factor); });
  return Tensor::full({}, norm, DType::f64);
}

void clip_grad_value_(std::span<const Var> params, double value) {
  check(value >= 0, "clip_grad_value_: value is ", value, "; it must be at least 0");
  const std::vector<Tensor> grads = gradients("clip_grad_value_", params);
  if constexpr (kCudaBuild) {
    if (!grads.empty() && grads.front().device().is_cuda()) return clip_grad_value_cuda(grads, value);
  }
  for (const Tensor& g : grads)
    transform(g, [=]<class A>(A x) {
      const A limit = static_cast<A>(value);
      return x > limit ? limit : x < -limit ? -limit : x;
    });
}

}  // namespace ht::optim
