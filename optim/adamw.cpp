// With t the parameter's updates, this one included, m = exp_avg and s = exp_avg_sq:
//   p = p * (1 - lr * weight_decay)
//   m = beta1 * m + (1 - beta1) * g,   s = beta2 * s + (1 - beta2) * g^2
//   p = p - lr / (1 - beta1^t) * m / (sqrt(s) / sqrt(1 - beta2^t) + eps)
#include "optim/adamw.h"

#include <cmath>

#include "core/build.h"
#include "optim/blocks.h"

namespace ht::optim {

namespace {
template <class A>
struct Coefficients {
  A beta1, take1, beta2, take2, root_correction2, eps, shrink, step_size;
};

template <class A>
Coefficients<A> coefficients(const AdamWOptions& o, double lr, int64_t t) {
  const double correction1 = 1 - std::pow(o.beta1, static_cast<double>(t));
  const double correction2 = 1 - std::pow(o.beta2, static_cast<double>(t));
  return {static_cast<A>(o.beta1),
          static_cast<A>(1 - o.beta1),
          static_cast<A>(o.beta2),
          static_cast<A>(1 - o.beta2),
          static_cast<A>(std::sqrt(correction2)),
          static_cast<A>(o.eps),
          static_cast<A>(1 - lr * o.weight_decay),
          static_cast<A>(lr / correction1)};
}

template <class A>
void update_block(A* __restrict p, const A* __restrict grad, A* __restrict m, A* __restrict s, int64_t n,
                  const Coefficients<A> c) {
  for (int64_t i = 0; i < n; ++i) {
    const A g = grad[i];
    m[i] = c.beta1 * m[i] + c.take1 * g;
    s[i] = c.beta2 * s[i] + c.take2 * g * g;
    p[i] = c.shrink * p[i] - c.step_size * (m[i] / (std::sqrt(s[i]) / c.root_correction2 + c.eps));
  }
}

template <class A>
void update_cpu(const AdamWOptions& o, double lr, const UpdateItem& item, const GradTransform<A>& transform) {
  const Coefficients<A> c = coefficients<A>(o, lr, *item.step.data<int64_t>() + 1);
  for_blocks(item.param.numel(), [&](int64_t at, int64_t n) {
    A param_buffer[kBlock], grad_buffer[kBlock];
    A* p = load(item.param, at, n, param_buffer);
    const A* g = transformed(transform, load(item.grad, at, n, grad_buffer), n, grad_buffer);
    update_block(p, g, item.buffers[0].data<A>() + at, item.buffers[1].data<A>() + at, n, c);
    store(p, item.param, at, n);
    if (item.half) store(p, item.half, at, n);
  });
}
}  // namespace

AdamW::AdamW(std::vector<Var> params, AdamWOptions options) : Optimizer("adamw") {
  add(std::move(params), options);
  finish();
}

AdamW::AdamW(std::vector<ParamGroup<AdamWOptions>> groups) : Optimizer("adamw") {
  for (ParamGroup<AdamWOptions>& g : groups) add(std::move(g.params), g.options);
  finish();
}

void AdamW::add(std::vector<Var> params, const AdamWOptions& o) {
  const size_t group = options_.size();
  for (const auto& [field, value] : {std::pair("beta1", o.beta1), std::pair("beta2", o.beta2)})
    check(value >= 0 && value < 1, "adamw: ", field, " is ", value, " in group ", group,
          "; it must be at least 0 and below 1");
  check_hyperparameter("adamw", "eps", o.eps, group);
  check_hyperparameter("adamw", "weight_decay", o.weight_decay, group);
  options_.push_back(o);
  add_group(std::move(params), o.lr, {"exp_avg", "exp_avg_sq"});
}

AdamWOptions AdamW::options(size_t group) const {
  params(group);  // checks the index
  AdamWOptions o = options_[group];
  o.lr = base_lr(group);
  return o;
}

void AdamW::update(size_t group, const Rate& rate, std::span<const UpdateItem> items, const GradRule& rule) {
  const AdamWOptions& o = options_[group];
  if constexpr (kCudaBuild) {
    if (rate.applied.device().is_cuda()) return adamw_cuda(o, rate, items, rule);
  }
  if (rule.skip()) return;
  const double lr = rate.now();
  for (const UpdateItem& item : items)
    item.param.dtype() == DType::f64 ? update_cpu(o, lr, item, rule.transform<double>())
                                     : update_cpu(o, lr, item, rule.transform<float>());
}

}  // namespace ht::optim
