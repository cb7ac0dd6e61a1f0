// y[0, 0, c] = mean of x over the image;  dx = dy / (h w) for every pixel. Sums in FP32 for 16-bit data.
#include "core/build.h"
#include "core/parallel.h"
#include "ops/pool.h"
#include "ops/registry.h"
#include "ops/runs.h"
#include "ops/samples.h"

namespace ht {

namespace {
template <class T>
void forward_cpu(const Tensor& x, const Tensor& y) {
  using A = acc_t<T>;
  const int64_t h = x.dim(1), w = x.dim(2), channels = x.dim(3), runs = (channels + kRun - 1) / kRun;
  const T* from = x.data<T>();
  T* to = y.data<T>();
  parallel_for(x.dim(0) * runs, Pool2d::grain(h * w * kRun), [=](int64_t begin, int64_t end) {
    A sum[kRun], row[kRun], buffer[kRun];
    for (int64_t item = begin; item < end; ++item) {
      const int64_t image = item / runs, c = item % runs * kRun, n = std::min(kRun, channels - c);
      std::fill_n(sum, n, A(0));
      for (int64_t iy = 0; iy < h; ++iy) {  // row by row: the sum of rows loses less than one long sum
        std::fill_n(row, n, A(0));
        for (int64_t ix = 0; ix < w; ++ix) {
          const A* v = load_run(from + ((image * h + iy) * w + ix) * channels + c, buffer, n);
          for (int64_t i = 0; i < n; ++i) row[i] += v[i];
        }
        for (int64_t i = 0; i < n; ++i) sum[i] += row[i];
      }
      for (int64_t i = 0; i < n; ++i) sum[i] /= static_cast<A>(h * w);
      store_run(sum, to + image * channels + c, n);
    }
  });
}

template <class T>
void backward_cpu(const Tensor& dy, const Tensor& dx) {
  using A = acc_t<T>;
  const int64_t h = dx.dim(1), w = dx.dim(2), channels = dx.dim(3);
  const T* from = dy.data<T>();
  T* to = dx.data<T>();
  parallel_for(dx.dim(0) * h, Pool2d::grain(w * channels), [=](int64_t begin, int64_t end) {
    A value[kRun], buffer[kRun];
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t c = 0; c < channels; c += kRun) {
        const int64_t n = std::min(kRun, channels - c);
        const A* g = load_run(from + r / h * channels + c, buffer, n);
        for (int64_t i = 0; i < n; ++i) value[i] = g[i] / static_cast<A>(h * w);
        T* first = to + r * w * channels + c;
        store_run(value, first, n);
        for (int64_t ix = 1; ix < w; ++ix) std::copy_n(first, n, first + ix * channels);
      }
    }
  });
}

struct GlobalAvgPool2d final : Op {
  TensorSpec in_spec;

  const OpInfo& info() const override { return global_avg_pool2d_info; }

  TensorSpec infer(Inputs in) const override {
    const Tensor& x = in[0];
    check(x.rank() == 4, name(), ": x must be [n, h, w, c], not of rank ", x.rank(), " (", Named{"x", x}, ")");
    check(is_floating(x.dtype()), name(), ": x must be floating (", Named{"x", x}, ")");
    check(x.dim(1) > 0 && x.dim(2) > 0, name(), ": x has no pixels (", Named{"x", x}, ")");
    return {{x.dim(0), 1, 1, x.dim(3)}, x.dtype()};
  }

  Tensor forward(Context& ctx, Inputs in, const TensorSpec& out) override {
    const Tensor x = in[0], y = Tensor::empty(out, ctx.device());
    in_spec = x.spec();
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) global_avg_pool2d_forward_cuda(ctx, x, y);
    }
    if (!ctx.is_cuda()) dispatch_floating(x.dtype(), name(), [&]<class T>() { forward_cpu<T>(x, y); });
    return y;
  }

  Grads backward(Context& ctx, const Tensor& dy, const std::vector<bool>&) override {
    const Tensor dx = Tensor::empty(in_spec, ctx.device());
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) global_avg_pool2d_backward_cuda(ctx, dy, dx);
    }
    if (!ctx.is_cuda()) dispatch_floating(dy.dtype(), name(), [&]<class T>() { backward_cpu<T>(dy, dx); });
    return {dx};
  }
};

std::vector<Sample> samples() {
  std::vector<Sample> list;
  for (const Shape& shape : {Shape{2, 4, 6, 3}, Shape{1, 5, 7, 2}, Shape{3, 1, 1, 5}, Shape{0, 2, 2, 3}})
    list.push_back({str("x ", shape), {sample_signed(shape, list.size(), 0.1, 2)}, [](std::span<const Var> in) {
                      return global_avg_pool2d(in[0]);
                    }});
  return list;
}
}  // namespace

const OpInfo global_avg_pool2d_info{"global_avg_pool2d", AmpTag::leave, "sums in FP32 in any type", samples};

Var global_avg_pool2d(const Var& x) { return apply(GlobalAvgPool2d{}, {x}); }

}  // namespace ht
