// y = x[..., begin:end, ...];  dx = dy there, 0 elsewhere. Always a copy: a part of a tensor would lose the alignment
// that vectorised kernels rely on, and keep the whole alive.
#include "ops/copy_blocks.h"
#include "ops/ops.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Slice final : Op {
  Slice(int a, int64_t b, int64_t e) : axis(a), begin(b), end(e) {}
  const OpInfo& info() const override { return slice_info; }

  TensorSpec infer(Inputs in) const override {
    const Tensor x = in[0];
    check(axis >= -x.rank() && axis < x.rank(), name(), ": axis ", axis, " is out of range for rank ", x.rank(), " (",
          Named{"x", x}, ")");
    check(begin >= 0 && begin <= end && end <= x.dim(axis), name(), ": [", begin, ", ", end, ") does not lie in [0, ",
          x.dim(axis), ") of axis ", axis, " (", Named{"x", x}, ")");
    return {x.shape().with(axis, end - begin), x.dtype()};
  }

  Tensor forward(Context& ctx, Inputs in, const TensorSpec& out) override {
    x_shape = in[0].shape();
    const Tensor y = Tensor::empty(out, ctx.device());
    copy_axis(ctx, x_shape.normalize(axis), end - begin, in[0], begin, y, 0);
    return y;
  }

  Grads backward(Context& ctx, const Tensor& dy, const std::vector<bool>&) override {
    const Tensor dx = Tensor::zeros(x_shape, dy.dtype(), ctx.device());
    copy_axis(ctx, x_shape.normalize(axis), end - begin, dy, 0, dx, begin);
    return {dx};
  }

  int axis;
  int64_t begin, end;
  Shape x_shape;
};

std::vector<Sample> samples() {
  const auto sample = [](const Shape& shape, int axis, int64_t begin, int64_t end, uint64_t stream) {
    return Sample{str("x ", shape, " axis ", axis, " [", begin, ", ", end, ")"),
                  {sample_signed(shape, stream, 0.1, 2)},
                  [=](std::span<const Var> in) { return slice(in[0], axis, begin, end); }};
  };
  return {sample({7}, 0, 2, 5, 0), sample({3, 5}, 1, 0, 4, 1), sample({1, 4, 3}, -2, 3, 4, 2),
          sample({2, 3, 5}, 0, 0, 2, 3), sample({2, 3}, 1, 1, 1, 4)};
}
}  // namespace

const OpInfo slice_info{"slice", AmpTag::leave, "only moves data", samples};

Var slice(const Var& x, int axis, int64_t begin, int64_t end) { return apply(Slice(axis, begin, end), {x}); }

}  // namespace ht
