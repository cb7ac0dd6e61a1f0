// y is x under another shape, dx is dy under x's: both views, nothing is copied.
#include "ops/ops.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Reshape final : Op {
  explicit Reshape(std::vector<int64_t> s) : sizes(std::move(s)) {}
  const OpInfo& info() const override { return reshape_info; }

  TensorSpec infer(Inputs in) const override {
    const Tensor x = in[0];
    std::vector<int64_t> known, full = sizes;
    int64_t* open = nullptr;
    for (int64_t& size : full) {
      if (size >= 0) {
        known.push_back(size);
        continue;
      }
      check(size == -1, name(), ": size ", size, " is negative; one size may be -1 (", Named{"x", x}, ")");
      check(open == nullptr, name(), ": more than one size is -1 (", Named{"x", x}, ")");
      open = &size;
    }
    const int64_t n = Shape(std::span<const int64_t>(known)).numel();
    if (open != nullptr) {
      check(n > 0 && x.numel() % n == 0, name(), ": ", x.numel(), " elements do not divide by the ", n,
            " of the known sizes (", Named{"x", x}, ")");
      *open = x.numel() / n;
    }
    const Shape shape{std::span<const int64_t>(full)};
    check(shape.numel() == x.numel(), name(), ": shape ", shape, " has ", shape.numel(), " elements but x has ",
          x.numel(), " (", Named{"x", x}, ")");
    return {shape, x.dtype()};
  }

  Tensor forward(Context&, Inputs in, const TensorSpec& out) override {
    x_shape = in[0].shape();
    return in[0].view(out.shape);
  }

  Grads backward(Context&, const Tensor& dy, const std::vector<bool>&) override { return {dy.view(x_shape)}; }

  std::vector<int64_t> sizes;
  Shape x_shape;
};

std::vector<Sample> samples() {
  const auto sample = [](const Shape& shape, const std::vector<int64_t>& sizes, uint64_t stream) {
    return Sample{str("x ", shape, " case ", stream),
                  {sample_signed(shape, stream, 0.1, 2)},
                  [sizes](std::span<const Var> in) { return reshape(in[0], sizes); }};
  };
  return {sample({3, 4}, {2, 6}, 0), sample({1, 5, 3}, {-1}, 1), sample({6}, {3, -1, 1}, 2), sample({1}, {}, 3),
          sample({0, 3}, {3, 0}, 4)};
}
}  // namespace

const OpInfo reshape_info{"reshape", AmpTag::leave, "moves no data", samples};

Var reshape(const Var& x, const std::vector<int64_t>& sizes) { return apply(Reshape(sizes), {x}); }

}  // namespace ht
