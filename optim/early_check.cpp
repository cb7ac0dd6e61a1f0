#include "optim/early_check.h"

#include <utility>

#include "core/build.h"

namespace ht::optim {

std::shared_ptr<EarlyCheck> EarlyCheck::of(std::span<const Var> params, int first_index) {
  auto check = std::make_shared<EarlyCheck>();
  for (const Var& p : params) {
    p.state()->watcher = check;
    check->index_[p.state().get()] = first_index++;
  }
  return check;
}

void EarlyCheck::written(const VarState& leaf) {
  const Tensor& grad = leaf.grad;
  if (!on_ || !grad.device().is_cuda() || grad.numel() < kLeast) return;
  if constexpr (kCudaBuild) {
    const int index = index_.at(&leaf);
    if (!first_bad_) first_bad_ = Tensor::full({1}, -1, DType::i32, grad.device());
    check_early_cuda(grad, index, first_bad_);
    mixed_ |= !seen_.insert_or_assign(index, Seen{grad, grad.version()}).second;
  }
}

// At once, not before the next look: that may be one of a step recorded before, which knows nothing of this.
void EarlyCheck::forget() {
  if (!seen_.empty()) first_bad_.fill_(-1);
  seen_.clear();
  mixed_ = false;
}

Tensor EarlyCheck::take(std::span<const UpdateItem> items, std::vector<UpdateItem>& rest) {
  bool valid = on_ && !mixed_ && !seen_.empty();
  size_t met = 0;
  for (const UpdateItem& item : items) {
    const auto it = seen_.find(item.index);
    if (it != seen_.end() && it->second.grad.data() == item.grad.data() && it->second.version == item.grad.version())
      ++met;
    else
      rest.push_back(item);
  }
  valid = valid && met == seen_.size();
  if (valid)
    seen_.clear();
  else
    forget(), rest.assign(items.begin(), items.end());
  return valid ? first_bad_ : Tensor();
}

}  // namespace ht::optim
