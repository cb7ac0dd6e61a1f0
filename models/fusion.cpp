#include "models/fusion.h"

#include <algorithm>
#include <typeinfo>
#include <vector>

#include "models/layers.h"
#include "ops/fused.h"
#include "ops/registry.h"

namespace ht::nn {

namespace {
// Exactly this type: a class derived from it may compute something else.
template <class M>
bool is(const Module& m) {
  return typeid(m) == typeid(M);
}
bool is_norm(const Module& m) { return is<BatchNorm2d>(m) || is<BatchNorm1d>(m); }
bool is_halving(const Module& m) {
  if (!is<MaxPool2d>(m)) return false;
  const Pool2dOptions& o = static_cast<const MaxPool2d&>(m).options();
  return o.kernel == 2 && (o.stride == 2 || o.stride == 0) && o.padding == 0;
}

template <ConvNormFunction f>
Var conv_norm(Layers layers, const Var& x) {
  const auto& conv = static_cast<const Conv2d&>(*layers[0].second);
  const auto& norm = static_cast<const BatchNorm2d&>(*layers[1].second);
  return f(x, conv.weight, conv.bias, norm.weight, norm.bias, norm.running(), conv.options(), norm.options());
}

template <NormFunction f>
Var norm(Layers layers, const Var& x) {
  const auto& norm = static_cast<const BatchNorm2d&>(*layers[0].second);
  norm.check_rank(x);
  return f(x, norm.weight, norm.bias, norm.running(), norm.options());
}

struct Rule {
  const OpInfo& op;
  std::vector<bool (*)(const Module&)> layers;
  Var (*run)(Layers, const Var&);
};
const std::vector<Rule>& rules() {
  static const std::vector<Rule> table{
      {conv_bn_relu_pool_info, {is<Conv2d>, is<BatchNorm2d>, is<ReLU>, is_halving}, conv_norm<conv_bn_relu_pool>},
      {conv_bn_relu_info, {is<Conv2d>, is<BatchNorm2d>, is<ReLU>}, conv_norm<conv_bn_relu>},
      {bn_relu_pool_info, {is<BatchNorm2d>, is<ReLU>, is_halving}, norm<bn_relu_pool>},
      {bn_relu_info, {is_norm, is<ReLU>}, norm<bn_relu>},
  };
  return table;
}

bool fits(const Rule& rule, Layers layers) {
  if (layers.size() < rule.layers.size()) return false;
  for (size_t i = 0; i < rule.layers.size(); ++i)
    if (!rule.layers[i](*layers[i].second)) return false;
  const auto overridden = [](std::string_view part) { return input_hook() && input_hook()->overrides(part); };
  return std::none_of(rule.op.parts.begin(), rule.op.parts.end(), overridden);
}
}  // namespace

std::pair<Var, size_t> run_first(Layers layers, const Var& x) {
  for (const Rule& rule : rules())
    if (fits(rule, layers)) return {rule.run(layers, x), rule.layers.size()};
  return {layers[0].second->forward(x), 1};
}

}  // namespace ht::nn
