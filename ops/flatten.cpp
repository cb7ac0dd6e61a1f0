// y is x with the axes from start_axis on made one, dx is dy under x's shape: both views, nothing is copied.
#include "ops/ops.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Flatten final : Op {
  explicit Flatten(int start) : start_axis(start) {}
  const OpInfo& info() const override { return flatten_info; }

  TensorSpec infer(Inputs in) const override {
    const Tensor x = in[0];
    const int rank = std::max(x.rank(), 1);  // a scalar becomes [1]
    check(start_axis >= -rank && start_axis < rank, name(), ": start axis ", start_axis, " is out of range for rank ",
          x.rank(), " (", Named{"x", x}, ")");
    const int start = start_axis < 0 ? start_axis + rank : start_axis;
    const auto kept = x.shape().sizes().subspan(0, static_cast<size_t>(start));
    std::vector<int64_t> sizes(kept.begin(), kept.end());
    sizes.push_back(x.shape().product(start, x.rank()));
    return {Shape(std::span<const int64_t>(sizes)), x.dtype()};
  }

  Tensor forward(Context&, Inputs in, const TensorSpec& out) override {
    x_shape = in[0].shape();
    return in[0].view(out.shape);
  }

  Grads backward(Context&, const Tensor& dy, const std::vector<bool>&) override { return {dy.view(x_shape)}; }

  int start_axis;
  Shape x_shape;
};

std::vector<Sample> samples() {
  const auto sample = [](const Shape& shape, int start, uint64_t stream) {
    return Sample{str("x ", shape, " start ", start),
                  {sample_signed(shape, stream, 0.1, 2)},
                  [start](std::span<const Var> in) { return flatten(in[0], start); }};
  };
  return {sample({2, 3, 1, 5}, 1, 0), sample({1, 4, 3}, 0, 1), sample({2, 3, 5}, -2, 2), sample({3}, 0, 3),
          sample({0, 2, 3}, 1, 4)};
}
}  // namespace

const OpInfo flatten_info{"flatten", AmpTag::leave, "moves no data", samples};

Var flatten(const Var& x, int start_axis) { return apply(Flatten(start_axis), {x}); }

}  // namespace ht
