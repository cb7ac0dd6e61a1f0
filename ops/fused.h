// An op made of others. Each part takes the output of the one before it and inputs of the whole; gradients are those of
// the parts. On CUDA the parts of a batch norm's tail are one (ops/batch_norm_forward.cu), on the CPU each is itself.
#pragma once

#include <functional>
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
  // An op that does all of it at once, where `make` gives one for the inputs.
  void set_whole(std::function<std::unique_ptr<Op>(Context&, Inputs)> make) { make_whole_ = std::move(make); }
  // Batch norm and what follows it, as fits the device. `x`, `gamma` and `beta` as in Part::inputs; `link` may be null.
  void add_batch_norm(Device device, const RunningStats& running, const BatchNormOptions& options, BatchNormTail tail,
                      int x, int gamma, int beta, std::shared_ptr<ConvNorm> link = {});

  const OpInfo& info() const override { return *info_; }
  TensorSpec infer(Inputs in) const override;
  Tensor forward(Context& ctx, Inputs in, const TensorSpec& out) override;
  Grads backward(Context& ctx, const Tensor& dy, const std::vector<bool>& needs) override;
  bool recomputes() const override { return last().recomputes(); }
  Tensor recompute(Context& ctx) override { return last().recompute(ctx); }
  bool drop_input(size_t k) override { return k == 0 && first().drop_input(0); }  // the first part's first
  void restore_input(size_t, const Tensor& input) override { first().restore_input(0, input); }

 private:
  Op& first() const { return whole_ ? *whole_ : *parts_[0].op; }
  Op& last() const { return whole_ ? *whole_ : *parts_.back().op; }

  const OpInfo* info_;
  std::vector<Part> parts_;
  std::function<std::unique_ptr<Op>(Context&, Inputs)> make_whole_;
  std::unique_ptr<Op> whole_;  // does what the parts would; null: they do
};

// The functions of the fused ops, and what stands before their first ReLU.
using NormFunction = Var (*)(const Var& x, const Var& gamma, const Var& beta, const RunningStats& running,
                             const BatchNormOptions& options);
using ConvNormFunction = Var (*)(const Var& x, const Var& weight, const Var& bias, const Var& gamma, const Var& beta,
                                 const RunningStats& running, const Conv2dOptions& conv,
                                 const BatchNormOptions& options);

// Batch norm and its tail as the op `info`; the second with a convolution before it, whose bias may be undefined and is
// the last input, so that every other one has its place.
Var fused_norm(const OpInfo& info, BatchNormTail tail, const Var& x, const Var& gamma, const Var& beta,
               const RunningStats& running, const BatchNormOptions& options);
Var fused_conv_norm(const OpInfo& info, BatchNormTail tail, const Var& x, const Var& weight, const Var& bias,
                    const Var& gamma, const Var& beta, const RunningStats& running, const Conv2dOptions& conv,
                    const BatchNormOptions& options);

// gradcheck cases of `f`, in training and evaluation: drawn again until no value before the ReLU is near 0, and no two
// in a 2x2 window are near each other. A case is the inputs' shapes: x, gamma, beta; or x, weight, gamma, beta and
// sometimes a bias.
using Cases = std::vector<std::vector<Shape>>;
std::vector<Sample> norm_samples(const Cases& cases, NormFunction f);
std::vector<Sample> conv_norm_samples(const Cases& cases, ConvNormFunction f);

}  // namespace ht
