// g = grad + weight_decay * p            (coupled decay)
// v = g on a parameter's first update, then v = momentum * v + (1 - dampening) * g
// d = g + momentum * v with Nesterov, v without it, g without momentum
// p = p * (1 - lr * weight_decay) - lr * d, the factor only with decoupled decay
// One pass over memory: p, grad and v are read once, p, v and the half copy of p written once.
#include "optim/sgd.h"

#include "core/build.h"
#include "optim/blocks.h"

namespace ht::optim {

namespace {
template <class A>
struct Coefficients {
  A decay, keep, take, momentum, shrink, lr;
};

template <class A>
Coefficients<A> coefficients(const SgdOptions& o, double lr, bool first) {
  return {static_cast<A>(o.decoupled_weight_decay ? 0 : o.weight_decay),
          static_cast<A>(first ? 0 : o.momentum),
          static_cast<A>(first ? 1 : 1 - o.dampening),
          static_cast<A>(o.momentum),
          static_cast<A>(o.decoupled_weight_decay ? 1 - lr * o.weight_decay : 1),
          static_cast<A>(lr)};
}

template <bool kNesterov, class A>
void momentum_block(A* __restrict p, const A* __restrict grad, A* __restrict v, int64_t n, const Coefficients<A> c) {
  for (int64_t i = 0; i < n; ++i) {
    const A g = grad[i] + c.decay * p[i];
    v[i] = c.keep * v[i] + c.take * g;
    const A d = kNesterov ? g + c.momentum * v[i] : v[i];
    p[i] = c.shrink * p[i] - c.lr * d;
  }
}

template <class A>
void plain_block(A* __restrict p, const A* __restrict grad, int64_t n, const Coefficients<A> c) {
  for (int64_t i = 0; i < n; ++i) p[i] = c.shrink * p[i] - c.lr * (grad[i] + c.decay * p[i]);
}

template <class A>
void update_cpu(const SgdOptions& o, double lr, const UpdateItem& item, const GradTransform<A>& transform) {
  const Coefficients<A> c = coefficients<A>(o, lr, *item.step.data<int64_t>() == 0);
  for_blocks(item.param.numel(), [&](int64_t at, int64_t n) {
    A param_buffer[kBlock], grad_buffer[kBlock];
    A* p = load(item.param, at, n, param_buffer);
    const A* g = transformed(transform, load(item.grad, at, n, grad_buffer), n, grad_buffer);
    if (item.buffers.empty()) {
      plain_block(p, g, n, c);
    } else {
      A* v = item.buffers[0].data<A>() + at;
      o.nesterov ? momentum_block<true>(p, g, v, n, c) : momentum_block<false>(p, g, v, n, c);
    }
    store(p, item.param, at, n);
    if (item.half) store(p, item.half, at, n);
  });
}
}  // namespace

Sgd::Sgd(std::vector<Var> params, SgdOptions options) : Optimizer("sgd") {
  add(std::move(params), options);
  finish();
}

Sgd::Sgd(std::vector<ParamGroup<SgdOptions>> groups) : Optimizer("sgd") {
  for (ParamGroup<SgdOptions>& g : groups) add(std::move(g.params), g.options);
  finish();
}

void Sgd::add(std::vector<Var> params, const SgdOptions& o) {
  const size_t group = options_.size();
  check_hyperparameter("sgd", "momentum", o.momentum, group);
  check_hyperparameter("sgd", "dampening", o.dampening, group);
  check_hyperparameter("sgd", "weight_decay", o.weight_decay, group);
  check(!o.nesterov || (o.momentum > 0 && o.dampening == 0),
        "sgd: nesterov needs momentum above 0 and dampening 0, given momentum ", o.momentum, " and dampening ",
        o.dampening, " in group ", group);
  options_.push_back(o);
  add_group(std::move(params), o.lr,
            o.momentum > 0 ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{});
}

SgdOptions Sgd::options(size_t group) const {
  params(group);  // checks the index
  SgdOptions o = options_[group];
  o.lr = base_lr(group);
  return o;
}

void Sgd::update(size_t group, const Rate& rate, std::span<const UpdateItem> items, const GradRule& rule) {
  const SgdOptions& o = options_[group];
  if constexpr (kCudaBuild) {
    if (rate.applied.device().is_cuda()) return sgd_cuda(o, rate, items, rule);
  }
  if (rule.skip()) return;
  const double lr = rate.now();
  for (const UpdateItem& item : items)
    item.param.dtype() == DType::f64 ? update_cpu(o, lr, item, rule.transform<double>())
                                     : update_cpu(o, lr, item, rule.transform<float>());
}

}  // namespace ht::optim
