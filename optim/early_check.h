// Looks for non-finite numbers in large gradients on CUDA as soon as backward has made them, beside the rest of it, so
// that the step itself need not read them for that.
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "autograd/var.h"
#include "optim/optimizer.h"

namespace ht::optim {

class EarlyCheck final : public GradWatcher {
 public:
  // Elements of a gradient that is looked at early: smaller ones cost the kernels beside them more than the step gains.
  static constexpr int64_t kLeast = int64_t{1} << 23;

  // Of these parameters; `first_index` is the number of the first one for reports. While it lives.
  static std::shared_ptr<EarlyCheck> of(std::span<const Var> params, int first_index);

  void written(const VarState& leaf) override;
  // While off, it looks at nothing.
  void set_on(bool on) { on_ = on; }
  // The gradients were dropped.
  void forget();
  // At a step: `rest` becomes the items that it has not seen as they are now. Gives the largest number of a parameter
  // that had a bad gradient, i32 [1] on the device, -1 without; undefined where it has looked at nothing of use.
  Tensor take(std::span<const UpdateItem> items, std::vector<UpdateItem>& rest);

 private:
  struct Seen {
    Tensor grad;
    uint64_t version;
  };
  std::unordered_map<const VarState*, int> index_;
  std::unordered_map<int, Seen> seen_;  // by the parameter's number, since the last step
  Tensor first_bad_;                    // -1 whenever nothing has been seen
  bool on_ = true;
  bool mixed_ = false;  // a gradient came twice: what the first one showed may no longer hold
};

// The CUDA side (optim/optimizer.cu): raises `first_bad` to `index` where the gradient is not finite.
void check_early_cuda(const Tensor& grad, int index, const Tensor& first_bad);

}  // namespace ht::optim
