#include "core/host_copy.h"

#include <utility>

#include "core/build.h"

namespace ht {

namespace {
class CpuCopy final : public HostCopy {
 public:
  explicit CpuCopy(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {}

  void request() override {
    copies_.clear();
    for (const Tensor& t : tensors_) copies_.push_back(t.clone());
    requested_ = true;
  }
  std::vector<Tensor> take() override {
    requested_ = false;
    return std::exchange(copies_, {});
  }

 private:
  std::vector<Tensor> tensors_, copies_;
};
}  // namespace

std::unique_ptr<HostCopy> make_host_copy(std::vector<Tensor> tensors) {
  if constexpr (kCudaBuild) {
    if (!tensors.empty() && tensors[0].device().is_cuda()) return make_host_copy_cuda(std::move(tensors));
  }
  return std::make_unique<CpuCopy>(std::move(tensors));
}

}  // namespace ht
