// y[oy, ox, c] = sum of x over the window / kernel^2: padding counts as zeros.
// dx[iy, ix, c] = sum of dy over the windows that cover the pixel / kernel^2. Both sums are FP32 for 16-bit data.
#include "core/build.h"
#include "core/parallel.h"
#include "ops/pool.h"
#include "ops/registry.h"
#include "ops/runs.h"
#include "ops/samples.h"

namespace ht {

namespace {
// to[r, q, :] = factor * the sum of from's pixels in the rectangle ys(r) x xs(q): windows in forward, the windows over
// a pixel in backward. `from` is [n, fh, fw, c], `to` [n, th, tw, c].
template <class T, class Rows, class Columns>
void sum_rectangles(const Pool2d& g, const T* from, int64_t fh, int64_t fw, T* to, int64_t th, int64_t tw, Rows ys_of,
                    Columns xs_of) {
  using A = acc_t<T>;
  const A factor = A(1) / static_cast<A>(g.kernel * g.kernel);
  const int64_t channels = g.c;
  parallel_for(g.n * th, Pool2d::grain(tw * g.c * g.kernel), [=](int64_t begin, int64_t end) {
    A sum[kRun], buffer[kRun];
    for (int64_t r = begin; r < end; ++r) {
      const Pool2d::Range ys = ys_of(r % th);
      for (int64_t q = 0; q < tw; ++q) {
        const Pool2d::Range xs = xs_of(q);
        for (int64_t c = 0; c < channels; c += kRun) {
          const int64_t n = std::min(kRun, channels - c);
          std::fill_n(sum, n, A(0));
          for (int64_t y = ys.begin; y < ys.end; ++y)
            for (int64_t x = xs.begin; x < xs.end; ++x) {
              const A* v = load_run(from + ((r / th * fh + y) * fw + x) * channels + c, buffer, n);
              for (int64_t i = 0; i < n; ++i) sum[i] += v[i];
            }
          for (int64_t i = 0; i < n; ++i) sum[i] *= factor;
          store_run(sum, to + (r * tw + q) * channels + c, n);
        }
      }
    }
  });
}

struct AvgPool2d final : Op {
  Pool2dOptions options;
  TensorSpec in_spec;

  explicit AvgPool2d(const Pool2dOptions& o) : options(o) {}
  const OpInfo& info() const override { return avg_pool2d_info; }

  TensorSpec infer(Inputs in) const override {
    return {pool2d_geometry(name(), in[0], options).out_shape(), in[0].dtype()};
  }

  Tensor forward(Context& ctx, Inputs in, const TensorSpec& out) override {
    const Tensor x = in[0], y = Tensor::empty(out, ctx.device());
    const Pool2d g = pool2d_geometry(name(), x, options);
    in_spec = x.spec();
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) avg_pool2d_forward_cuda(ctx, g, x, y);
    }
    if (!ctx.is_cuda()) {
      dispatch_floating(x.dtype(), name(), [&]<class T>() {
        sum_rectangles(
            g, x.data<T>(), g.h, g.w, y.data<T>(), g.oh, g.ow, [g](int64_t oy) { return g.window(oy, g.h); },
            [g](int64_t ox) { return g.window(ox, g.w); });
      });
    }
    return y;
  }

  Grads backward(Context& ctx, const Tensor& dy, const std::vector<bool>&) override {
    const Tensor dx = Tensor::empty(in_spec, ctx.device());
    const Pool2d g = pool2d_geometry(name(), dx, options);
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) avg_pool2d_backward_cuda(ctx, g, dy, dx);
    }
    if (!ctx.is_cuda()) {
      dispatch_floating(dy.dtype(), name(), [&]<class T>() {
        sum_rectangles(
            g, dy.data<T>(), g.oh, g.ow, dx.data<T>(), g.h, g.w, [g](int64_t iy) { return g.windows_over(iy, g.oh); },
            [g](int64_t ix) { return g.windows_over(ix, g.ow); });
      });
    }
    return {dx};
  }
};

std::vector<Sample> samples() {
  std::vector<Sample> list;
  const auto add = [&](const char* label, const Shape& shape, Pool2dOptions o) {
    list.push_back({label, {sample_signed(shape, list.size(), 0.1, 2)}, [o](std::span<const Var> in) {
                      return avg_pool2d(in[0], o);
                    }});
  };
  add("2x2", {2, 4, 6, 3}, {});
  add("2x2, odd sizes", {1, 5, 7, 2}, {});
  add("3x3 stride 2 padding 1", {2, 5, 6, 3}, {.kernel = 3, .stride = 2, .padding = 1});
  add("3x3 stride 1", {1, 4, 5, 2}, {.kernel = 3, .stride = 1});
  add("2x2 stride 3", {2, 7, 5, 1}, {.kernel = 2, .stride = 3});
  add("4x4 padding 2 stride 1", {1, 3, 4, 2}, {.kernel = 4, .stride = 1, .padding = 2});
  add("empty batch", {0, 4, 4, 2}, {});
  return list;
}
}  // namespace

const OpInfo avg_pool2d_info{"avg_pool2d", AmpTag::leave, "sums in FP32 in any type", samples};

Var avg_pool2d(const Var& x, const Pool2dOptions& options) { return apply(AvgPool2d(options), {x}); }

}  // namespace ht
