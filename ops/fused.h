// An op made of others. Each part takes the output of the one before it and inputs of the whole; gradients are those of
// the parts. On CUDA the parts of a batch norm's tail are one (ops/batch_norm_forward.cu), on the CPU each is itself.
#pragma once

#include <memory>
#include <vector>

#include "ops/parts.h"

namespace ht {

class Fused final : public Op {
 public:
  static constexpr int kPrevious = -1;  // the output of the part before
  struct Part {
    std::unique_ptr<Op> op;
    std::vector<int> inputs;  // indices of the whole's inputs, or kPrevious
  };

  explicit Fused(const OpInfo& info) : info_(&info) {}
  void add(std::unique_ptr<Op> op, std::vector<int> inputs) { parts_.push_back({std::move(op), std::move(inputs)}); }
  // Batch norm and what follows it, as fits the device. `x`, `gamma` and `beta` as in Part::inputs.
  void add_batch_norm(Device device, const RunningStats& running, const BatchNormOptions& options, BatchNormTail tail,
                      int x, int gamma, int beta);

  const OpInfo& info() const override { return *info_; }
  TensorSpec infer(Inputs in) const override;
  Tensor forward(Context& ctx, Inputs in, const TensorSpec& out) override;
  Grads backward(Context& ctx, const Tensor& dy, const std::vector<bool>& needs) override;

 private:
  const OpInfo* info_;
  std::vector<Part> parts_;
};

// gradcheck cases of `f` around a batch norm of [n, h, w, c] maps that the sample's other inputs make: drawn again
// until no value before the ReLU is near 0, and no two in a 2x2 window are near each other. `cases` are the inputs'
// shapes, `gamma` is which of them has the channels; `before` computes up to the ReLU.
using FusedFunction = Var (*)(std::span<const Var> in, const RunningStats& running, const BatchNormOptions& options);
std::vector<Sample> batch_norm_samples(const std::vector<std::vector<Shape>>& cases, size_t gamma, FusedFunction before,
                                       FusedFunction f);

}  // namespace ht
