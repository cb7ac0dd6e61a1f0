#include "models/fold.h"

#include <typeinfo>

#include "models/layers.h"

namespace ht::nn {

namespace {
// Exactly this type: a class derived from it may compute something else.
template <class M>
M* as(Module& m) {
  return typeid(m) == typeid(M) ? static_cast<M*>(&m) : nullptr;
}
}  // namespace

void fold_batch_norm_(Sequential& net) {
  for (size_t i = 0; i < net.size(); ++i) {
    if (auto* inner = as<Sequential>(net[i])) fold_batch_norm_(*inner);
    auto* conv = as<Conv2d>(net[i]);
    if (!conv || i + 1 == net.size()) continue;
    const auto* norm = as<BatchNorm2d>(net[i + 1]);
    if (!norm) continue;
    conv->fold(*norm);
    net.erase(i + 1);
  }
}

}  // namespace ht::nn
