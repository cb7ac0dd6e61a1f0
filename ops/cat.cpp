// y = x0, x1, ... one after another along an axis;  dx_k = the part of dy that came from x_k.
#include "ops/copy_blocks.h"
#include "ops/ops.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
struct Cat final : Op {
  explicit Cat(int a) : axis(a) {}
  const OpInfo& info() const override { return cat_info; }

  TensorSpec infer(Inputs in) const override {
    const Tensor first = in[0];
    check(axis >= -first.rank() && axis < first.rank(), name(), ": axis ", axis, " is out of range for rank ",
          first.rank(), " (", Named{"x0", first}, ")");
    int64_t length = 0;
    for (size_t k = 0; k < in.size(); ++k) {
      const Tensor x = in[k];
      check(x.rank() == first.rank() && x.shape().with(axis, first.dim(axis)) == first.shape(), name(), ": x", k,
            " differs from x0 outside axis ", axis, " (", Named{"x0", first}, ", ", Named{str("x", k), x}, ")");
      check(x.dtype() == first.dtype(), name(), ": dtypes differ; cast() one to the other's (", Named{"x0", first},
            ", ", Named{str("x", k), x}, ")");
      length += x.dim(axis);
    }
    return {first.shape().with(axis, length), first.dtype()};
  }

  Tensor forward(Context& ctx, Inputs in, const TensorSpec& out) override {
    const Tensor y = Tensor::empty(out, ctx.device());
    int64_t begin = 0;
    for (const Tensor& x : in) {
      shapes.push_back(x.shape());
      copy_axis(ctx, out.shape.normalize(axis), x.dim(axis), x, 0, y, begin);
      begin += x.dim(axis);
    }
    return y;
  }

  Grads backward(Context& ctx, const Tensor& dy, const std::vector<bool>& needs) override {
    Grads grads(shapes.size());
    int64_t begin = 0;
    for (size_t k = 0; k < shapes.size(); ++k) {
      const int64_t length = shapes[k][axis];
      if (needs[k]) {
        grads[k] = Tensor::empty(shapes[k], dy.dtype(), ctx.device());
        copy_axis(ctx, dy.shape().normalize(axis), length, dy, begin, grads[k], 0);
      }
      begin += length;
    }
    return grads;
  }

  int axis;
  std::vector<Shape> shapes;
};

std::vector<Sample> samples() {
  const auto sample = [](std::initializer_list<Shape> shapes, int axis) {
    Sample s{str("axis ", axis, " of ", shapes.size()), {}, [axis](std::span<const Var> in) {
               return cat(std::vector<Var>(in.begin(), in.end()), axis);
             }};
    for (const Shape& shape : shapes) s.inputs.push_back(sample_signed(shape, s.inputs.size(), 0.1, 2));
    return s;
  };
  return {sample({{3, 2}, {1, 2}}, 0), sample({{2, 3}, {2, 1}, {2, 4}}, -1), sample({{1, 2, 3}, {1, 5, 3}}, 1),
          sample({{5}}, 0), sample({{2, 0}, {2, 3}}, 1)};
}
}  // namespace

const OpInfo cat_info{"cat", AmpTag::promote, "one output holds all inputs", samples};

Var cat(const std::vector<Var>& xs, int axis) {
  check(!xs.empty(), "cat: no inputs; give at least one");
  return apply(Cat(axis), xs);
}

}  // namespace ht
