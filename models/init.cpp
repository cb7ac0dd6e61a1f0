#include "models/init.h"

#include <algorithm>
#include <cmath>

#include "core/context.h"

namespace ht::nn {

namespace {
PhiloxStream next_stream() { return Context::of(Device::cpu()).generator().next(); }

double kaiming_std(const Tensor& weight, const KaimingOptions& o) {
  const int64_t fan = o.fan == Fan::in ? fan_in(weight) : fan_out(weight);
  return std::sqrt(2.0 / ((1 + o.a * o.a) * static_cast<double>(fan)));
}

double xavier_std(const Tensor& weight, double gain) {
  return gain * std::sqrt(2.0 / static_cast<double>(fan_in(weight) + fan_out(weight)));
}

// Those of rank 2 and above but the last.
std::vector<Tensor> inner_weights(const Module& model) {
  std::vector<Tensor> weights;
  for (const Var& p : model.parameters())
    if (p.shape().rank() >= 2) weights.push_back(p.value());
  if (!weights.empty()) weights.pop_back();
  return weights;
}
}  // namespace

int64_t fan_in(const Tensor& weight) {
  check(weight.rank() >= 2, "fan_in: a weight needs rank 2 or more (", Named{"weight", weight}, ")");
  return weight.shape().product(1, weight.rank());
}

int64_t fan_out(const Tensor& weight) {
  check(weight.rank() >= 2, "fan_out: a weight needs rank 2 or more (", Named{"weight", weight}, ")");
  return weight.shape().product(0, weight.rank() - 1);
}

void uniform_(const Tensor& t, double low, double high) {
  t.copy_(Tensor::uniform(t.shape(), next_stream(), low, high, t.dtype()));
}

void normal_(const Tensor& t, double mean, double std) {
  t.copy_(Tensor::normal(t.shape(), next_stream(), mean, std, t.dtype()));
}

void kaiming_normal_(const Tensor& weight, const KaimingOptions& options) {
  normal_(weight, 0, kaiming_std(weight, options));
}

void dirac_(const Tensor& weight) {
  const int64_t in = fan_in(weight), channels = weight.dim(-1), centre = in / channels / 2 * channels;
  const Tensor flat = weight.view({weight.numel()});
  flat.zero_();
  for (int64_t i = 0; i < std::min(weight.dim(0), channels); ++i) {
    const int64_t at = i * in + centre + i;
    flat.rows(at, at + 1).fill_(1);
  }
}

void kaiming_fan_out_(const Module& model) {
  for (const Tensor& w : inner_weights(model)) kaiming_normal_(w, {.fan = Fan::out});
}

void kaiming_dirac_(const Module& model) {
  kaiming_fan_out_(model);
  for (const Tensor& w : inner_weights(model)) dirac_(w.rows(0, std::min(w.dim(0), w.dim(-1))));
}

void kaiming_uniform_(const Tensor& weight, const KaimingOptions& options) {
  const double bound = std::sqrt(3.0) * kaiming_std(weight, options);
  uniform_(weight, -bound, bound);
}

void xavier_normal_(const Tensor& weight, double gain) { normal_(weight, 0, xavier_std(weight, gain)); }

void xavier_uniform_(const Tensor& weight, double gain) {
  const double bound = std::sqrt(3.0) * xavier_std(weight, gain);
  uniform_(weight, -bound, bound);
}

}  // namespace ht::nn
