// y[n, p, q, o] = bias[o] + sum over i, j, c of x[n, p stride + i dilation - padding, q stride + j dilation - padding,
// c] W[o, i, j, c], zeros outside x. Each product goes back to its factors:
//   dx[n, p stride + i dilation - padding, ...] += dy[n, p, q, :] W[:, i, j, :]
//   dW[:, i, j, :] += dy[n, p, q, :]^T x[n, p stride + i dilation - padding, ...],  dbias = the sum of dy's rows.
#include "core/build.h"
#include "ops/batch_norm.h"
#include "ops/conv2d_kernels.h"
#include "ops/gemm.h"
#include "ops/parts.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

Conv2dShape conv2d_shape(const Tensor& x, const Tensor& w, const Conv2dOptions& options) {
  Conv2dShape s{.n = x.dim(0),
                .h = x.dim(1),
                .w = x.dim(2),
                .in = x.dim(3),
                .out = w.dim(0),
                .kh = w.dim(1),
                .kw = w.dim(2),
                .oh = 0,
                .ow = 0,
                .stride = options.stride,
                .padding = options.padding,
                .dilation = options.dilation};
  s.oh = (s.h + 2 * s.padding - s.dilation * (s.kh - 1) - 1) / s.stride + 1;
  s.ow = (s.w + 2 * s.padding - s.dilation * (s.kw - 1) - 1) / s.stride + 1;
  return s;
}

namespace {
struct Conv2d final : Op {
  explicit Conv2d(const Conv2dOptions& o, std::shared_ptr<ConvNorm> l = {}) : options(o), link(std::move(l)) {}
  const OpInfo& info() const override { return conv2d_info; }

  TensorSpec infer(Inputs in) const override {
    const Tensor &x = in[0], &w = in[1];
    const auto need = [&](bool ok, const auto&... parts) {
      if (ok) return;
      const std::string bias = in.size() > 2 ? str(", ", Named{"bias", in[2]}) : "";
      fail("conv2d: ", parts..., " (", Named{"x", x}, ", ", Named{"weight", w}, bias, ")");
    };
    need(is_floating(x.dtype()) && is_floating(w.dtype()), "the inputs must be floating; cast() them first");
    need(x.dtype() == w.dtype(), "x is ", x.dtype(), " but weight is ", w.dtype(), "; cast() one of them");
    need(x.rank() == 4, "x has rank ", x.rank(), " but needs 4, [n, h, w, in]");
    need(w.rank() == 4, "weight has rank ", w.rank(), " but needs 4, [out, kh, kw, in]");
    need(x.dim(3) == w.dim(3), "x has ", x.dim(3), " channels but weight takes ", w.dim(3));
    need(options.stride >= 1, "stride is ", options.stride, " but must be at least 1");
    need(options.padding >= 0, "padding is ", options.padding, " but must be at least 0");
    need(options.dilation >= 1, "dilation is ", options.dilation, " but must be at least 1");
    need(w.dim(1) > 0 && w.dim(2) > 0, "the kernel is ", w.dim(1), "x", w.dim(2), " but must be at least 1x1");
    const Conv2dShape s = shape_of(x, w);
    const int64_t height = s.dilation * (s.kh - 1) + 1, width = s.dilation * (s.kw - 1) + 1;
    need(s.h + 2 * s.padding >= height && s.w + 2 * s.padding >= width, "the kernel spans ", height, "x", width,
         " but the padded input is ", s.h + 2 * s.padding, "x", s.w + 2 * s.padding, "; raise padding (now ", s.padding,
         ")");
    if (in.size() > 2) {
      need(in[2].dtype() == x.dtype(), "x is ", x.dtype(), " but bias is ", in[2].dtype(), "; cast() one of them");
      need(in[2].shape() == Shape{s.out}, "bias must have shape ", Shape{s.out});
    }
    return {{s.n, s.oh, s.ow, s.out}, x.dtype()};
  }

  Tensor forward(Context& ctx, Inputs in, const TensorSpec& out) override {
    const Tensor &x = in[0], &w = in[1], y = Tensor::empty(out, ctx.device());
    const Tensor bias = in.size() > 2 ? in[2] : Tensor();
    const Conv2dShape s = shape_of(x, w);
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) {
        const bool wants_sums = link && link->training && !batch_norm_is_resident_cuda(ctx, y, link->tail);
        conv2d_forward_cuda(ctx, s, x, w, bias, y, wants_sums ? &link->sums : nullptr);
      }
    }
    if (!ctx.is_cuda()) {
      if (s.pointwise())
        gemm(ctx, {.m = s.n * s.h * s.w, .n = s.out, .k = s.in, .transpose_b = true}, x, w, y, bias);
      else
        conv2d_forward_cpu(s, x, w, bias, y);
    }
    x_ = x, w_ = w;
    return y;
  }

  Grads backward(Context& ctx, const Tensor& dy, const std::vector<bool>& needs) override {
    const Tensor &x = *x_, &w = *w_;
    Grads grads(needs.size());
    // The weight's first: on CUDA it runs beside the data's and all that follows from that.
    if (needs[1]) weight_gradient(ctx, dy, grads[1] = Tensor::empty_like(w), needs[0]);
    if (needs[0]) data_gradient(ctx, dy, grads[0] = Tensor::empty_like(x));
    if (needs.size() > 2 && needs[2]) {
      grads[2] = Tensor::empty(Shape{w.dim(0)}, dy.dtype(), dy.device());
      sum_rows(ctx, dy, grads[2]);
    }
    return grads;
  }

  bool drop_input(size_t k) override {
    if (k == 0) x_ = {};
    return k == 0;
  }
  void restore_input(size_t, const Tensor& input) override { x_ = input; }

 private:
  Conv2dShape shape_of(const Tensor& x, const Tensor& w) const { return conv2d_shape(x, w, options); }

  void data_gradient(Context& ctx, const Tensor& dy, const Tensor& dx) const {
    const Conv2dShape s = shape_of(*x_, *w_);
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) return conv2d_dgrad_cuda(ctx, s, dy, *w_, dx);
    }
    if (s.pointwise()) return gemm(ctx, {.m = s.n * s.h * s.w, .n = s.in, .k = s.out}, dy, *w_, dx);
    conv2d_dgrad_cpu(s, dy, *w_, dx);
  }

  void weight_gradient(Context& ctx, const Tensor& dy, const Tensor& dw, bool beside) const {
    const Conv2dShape s = shape_of(*x_, *w_);
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) return conv2d_wgrad_cuda(ctx, s, dy, *x_, dw, beside);
    }
    if (s.pointwise())
      return gemm(ctx, {.m = s.out, .n = s.in, .k = s.n * s.h * s.w, .transpose_a = true}, dy, *x_, dw);
    conv2d_wgrad_cpu(s, dy, *x_, dw);
  }

  Conv2dOptions options;
  std::shared_ptr<ConvNorm> link;  // to the batch norm behind it; may be null
  Saved x_, w_;
};

std::vector<Sample> samples() {
  std::vector<Sample> samples;
  const auto add = [&](const Shape& x, const Shape& w, bool bias, const Conv2dOptions& options = {}) {
    const uint64_t stream = samples.size() * 3;
    std::vector<Tensor> in{sample_signed(x, stream, 0.1, 2), sample_signed(w, stream + 1, 0.1, 2)};
    if (bias) in.push_back(sample_signed({w[0]}, stream + 2, 0.1, 2));
    samples.push_back({str("x ", x, ", weight ", w, bias ? ", bias" : "", ", stride ", options.stride, ", padding ",
                           options.padding, ", dilation ", options.dilation),
                       in, [options](std::span<const Var> v) {
                         return v.size() > 2 ? conv2d(v[0], v[1], v[2], options) : conv2d(v[0], v[1], options);
                       }});
  };
  add({2, 5, 7, 3}, {4, 3, 3, 3}, true, {.padding = 1});
  add({1, 1, 1, 1}, {1, 1, 1, 1}, true);
  add({3, 4, 5, 7}, {3, 1, 1, 7}, false);
  add({1, 1, 1, 2}, {3, 3, 3, 2}, true, {.padding = 1});  // only the middle tap meets the image
  add({2, 7, 6, 2}, {3, 3, 3, 2}, false, {.stride = 2, .padding = 1});
  add({1, 9, 8, 2}, {2, 3, 3, 2}, true, {.padding = 2, .dilation = 2});
  add({2, 8, 9, 1}, {2, 5, 5, 1}, false, {.stride = 3, .padding = 2});
  add({1, 6, 5, 2}, {2, 2, 4, 2}, true, {.stride = 2, .padding = 1, .dilation = 2});
  add({2, 5, 5, 3}, {2, 1, 1, 3}, true, {.stride = 2});  // three quarters of dx are zero
  add({1, 4, 9, 2}, {1, 1, 5, 2}, false, {.padding = 2});
  add({0, 4, 4, 2}, {3, 3, 3, 2}, true, {.padding = 1});
  return samples;
}
}  // namespace

const OpInfo conv2d_info{"conv2d", AmpTag::allow, "tensor cores: half in and out, FP32 accumulation", samples};

std::unique_ptr<Op> make_conv2d(const Conv2dOptions& options, std::shared_ptr<ConvNorm> link) {
  return std::make_unique<Conv2d>(options, std::move(link));
}

Var conv2d(const Var& x, const Var& weight, const Conv2dOptions& options) { return conv2d(x, weight, {}, options); }

Var conv2d(const Var& x, const Var& weight, const Var& bias, const Conv2dOptions& options) {
  return bias ? apply(Conv2d{options}, {x, weight, bias}) : apply(Conv2d{options}, {x, weight});
}

}  // namespace ht
