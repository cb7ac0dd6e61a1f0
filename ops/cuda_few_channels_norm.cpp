// The op behind ops/few_channels_norm.h: conv_bn_relu where that fits.
#include "core/alignment.h"
#include "core/tuning.h"
#include "ops/batch_norm.h"
#include "ops/few_channels_norm.h"
#include "ops/fused.h"
#include "ops/registry.h"

namespace ht {

namespace {
// x, weight, gamma, beta.
struct FewChannelsNorm final : Op {
  Conv2dShape shape;
  BatchNormOptions options;
  RunningStats running;
  Saved x_, w_, gamma_, beta_, y_;
  Tensor mean_, invstd_, moments_;
  TensorSpec out_;

  const OpInfo& info() const override { return conv_bn_relu_info; }
  TensorSpec infer(Inputs) const override { return out_; }  // the whole op has checked its inputs

  Tensor forward(Context& ctx, Inputs in, const TensorSpec& out) override {
    const Tensor &x = in[0], &w = in[1], &gamma = in[2];
    mean_ = Tensor::empty_like(gamma), invstd_ = Tensor::empty_like(gamma);
    moments_ = few_channels_norm_forward_cuda(ctx, shape, options, x, w, running, mean_, invstd_);
    x_ = x, w_ = w, gamma_ = gamma, beta_ = in[3], out_ = out;
    const Tensor y = apply_to(ctx);
    if (memory_mode() == MemoryMode::speed) y_ = y;
    return y;
  }

  bool recomputes() const override { return true; }
  Tensor recompute(Context& ctx) override {
    const Tensor y = apply_to(ctx);
    y_ = y;  // backward, which comes soon, wants it, too
    return y;
  }

  Grads backward(Context& ctx, const Tensor& dy, const std::vector<bool>& needs) override {
    const Tensor &x = *x_, &w = *w_, &gamma = *gamma_;
    const auto like = [](bool wanted, const Tensor& t) { return wanted ? Tensor::empty_like(t) : Tensor(); };
    Grads grads{like(needs[0], x), like(needs[1], w), like(needs[2], gamma), like(needs[3], gamma)};
    if (needs[1] && !needs[0]) {
      const Tensor y = y_ ? *y_ : apply_to(ctx);
      few_channels_norm_wgrad_cuda(ctx, shape, x, w, gamma, mean_, invstd_, moments_, y, aligned(dy), grads[1],
                                   grads[2], grads[3]);
      return grads;
    }
    // Else the convolution's output and its gradient are needed themselves.
    const Tensor between = Tensor::empty(out_, ctx.device());
    few_channels_forward_cuda(ctx, shape, x, w, between, {});
    const Tensor d = needs[0] || needs[1] ? Tensor::empty_like(between) : Tensor();
    batch_norm_backward_cuda(ctx, true, between, gamma, *beta_, mean_, invstd_, dy, d, grads[2], grads[3],
                             {.relu = true});
    if (needs[1]) few_channels_wgrad_cuda(ctx, shape, d, x, grads[1]);
    if (needs[0]) conv2d_dgrad_cuda(ctx, shape, d, w, grads[0]);
    return grads;
  }

 private:
  Tensor apply_to(Context& ctx) const {
    const Tensor y = Tensor::empty(out_, ctx.device());
    few_channels_norm_apply_cuda(ctx, shape, *x_, *w_, *gamma_, *beta_, mean_, invstd_, y);
    return y;
  }
};
}  // namespace

std::unique_ptr<Op> make_few_channels_norm(const Conv2dShape& shape, const BatchNormOptions& options,
                                           const RunningStats& running) {
  auto op = std::make_unique<FewChannelsNorm>();
  op->shape = shape, op->options = options, op->running = running;
  return op;
}

}  // namespace ht
