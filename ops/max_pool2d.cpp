// y[oy, ox, c] = max of x over the window, padding left out; a NaN in the window wins.
// dx: each window gives its dy to its first maximum in row-major order (its first NaN where there is one). Backward
// finds the maximum again from x, which the layer before keeps anyway.
#include "core/build.h"
#include "core/parallel.h"
#include "ops/pool.h"
#include "ops/registry.h"
#include "ops/runs.h"
#include "ops/samples.h"

namespace ht {

namespace {
template <class A>
A wider(A m, A v) {
  return (v > m) | (v != v) ? v : m;
}
// True for the elements that equal the maximum m: with a NaN in the window, for the NaNs only.
template <class A>
bool wins(A v, A m) {
  return (v == m) | (v != v);
}

template <class A>
void max_of_four(const A* __restrict a, const A* __restrict b, const A* __restrict c, const A* __restrict d,
                 A* __restrict m, int64_t n) {
  for (int64_t i = 0; i < n; ++i) m[i] = wider(wider(wider(a[i], b[i]), c[i]), d[i]);
}

template <class A>
void max_into(A* __restrict m, const A* __restrict v, int64_t n) {
  for (int64_t i = 0; i < n; ++i) m[i] = wider(m[i], v[i]);
}

// Splits dy among the four pixels of a window.
template <class A>
void give_to_first(const A* __restrict a, const A* __restrict b, const A* __restrict c, const A* __restrict d,
                   const A* __restrict dy, A* __restrict da, A* __restrict db, A* __restrict dc, A* __restrict dd,
                   int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const A m = wider(wider(wider(a[i], b[i]), c[i]), d[i]);
    const bool wa = wins(a[i], m), wb = wins(b[i], m), wc = wins(c[i], m);
    const A g = dy[i], after_a = wa ? A(0) : g, after_b = wb ? A(0) : after_a;
    da[i] = wa ? g : A(0);
    db[i] = wb ? after_a : A(0);
    dc[i] = wc ? after_b : A(0);
    dd[i] = wc ? A(0) : after_b;
  }
}

// Adds to dx what is left of the window's gradient where v is the maximum, and takes it away from `left`.
template <class A>
void give_if_max(const A* __restrict v, const A* __restrict m, A* __restrict left, A* __restrict dx, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const bool win = wins(v[i], m[i]);
    const A g = left[i], given = win ? g : A(0), kept = win ? A(0) : g;
    dx[i] += given;
    left[i] = kept;
  }
}

// m = the maximum over the window of `n` channels from `x` (at the image's first pixel).
template <class T, class A = acc_t<T>>
void window_max(const Pool2d& g, Pool2d::Range ys, Pool2d::Range xs, const T* x, A* m, A* buffer, int64_t n) {
  for (int64_t iy = ys.begin; iy < ys.end; ++iy) {
    for (int64_t ix = xs.begin; ix < xs.end; ++ix) {
      const A* v = load_run(x + (iy * g.w + ix) * g.c, buffer, n);
      if (iy == ys.begin && ix == xs.begin) {
        std::copy_n(v, n, m);
      } else {
        max_into(m, v, n);
      }
    }
  }
}

template <class T>
void forward_cpu(const Pool2d& g, const T* x, T* y) {
  using A = acc_t<T>;
  const int64_t rows = g.n * g.oh, row_size = g.w * g.c;
  parallel_for(rows, Pool2d::grain(g.ow * g.c * g.kernel * g.kernel), [=](int64_t begin, int64_t end) {
    A buffers[5][kRun];
    for (int64_t r = begin; r < end; ++r) {
      const int64_t image = r / g.oh, oy = r % g.oh;
      const T* from = x + image * g.h * row_size;
      for (int64_t ox = 0; ox < g.ow; ++ox) {
        for (int64_t c = 0; c < g.c; c += kRun) {
          const int64_t n = std::min(kRun, g.c - c);
          T* to = y + (r * g.ow + ox) * g.c + c;
          A* m = run_target(to, buffers[4]);
          if (g.halves()) {
            const T* top = from + 2 * oy * row_size + 2 * ox * g.c + c;
            max_of_four(load_run(top, buffers[0], n), load_run(top + g.c, buffers[1], n),
                        load_run(top + row_size, buffers[2], n), load_run(top + row_size + g.c, buffers[3], n), m, n);
          } else {
            window_max(g, g.window(oy, g.h), g.window(ox, g.w), from + c, m, buffers[0], n);
          }
          store_run(m, to, n);
        }
      }
    }
  });
}

// Windows of 2x2 write every pixel of dx themselves, except the last row and column of an odd size.
template <class T>
void backward_halves(const Pool2d& g, const T* x, const T* dy, T* dx) {
  using A = acc_t<T>;
  const int64_t row_size = g.w * g.c;
  parallel_for(g.n * g.oh, Pool2d::grain(g.ow * g.c * 4), [=](int64_t begin, int64_t end) {
    A in[5][kRun], out[4][kRun];
    for (int64_t r = begin; r < end; ++r) {
      const int64_t image = r / g.oh, oy = r % g.oh, top = (image * g.h + 2 * oy) * row_size;
      for (int64_t ox = 0; ox < g.ow; ++ox) {
        for (int64_t c = 0; c < g.c; c += kRun) {
          const int64_t n = std::min(kRun, g.c - c), at = top + 2 * ox * g.c + c;
          const int64_t pixels[4] = {at, at + g.c, at + row_size, at + row_size + g.c};
          const A* v[4];
          A* d[4];
          for (int k = 0; k < 4; ++k) {
            v[k] = load_run(x + pixels[k], in[k], n);
            d[k] = run_target(dx + pixels[k], out[k]);
          }
          give_to_first(v[0], v[1], v[2], v[3], load_run(dy + (r * g.ow + ox) * g.c + c, in[4], n), d[0], d[1], d[2],
                        d[3], n);
          for (int k = 0; k < 4; ++k) store_run(d[k], dx + pixels[k], n);
        }
      }
      if (g.w % 2)
        for (int64_t row = 0; row < 2; ++row) std::fill_n(dx + top + row * row_size + (g.w - 1) * g.c, g.c, T{});
      if (g.h % 2 && oy == g.oh - 1) std::fill_n(dx + top + 2 * row_size, row_size, T{});
    }
  });
}

// Any window: adds into dx, which is zero at first and held in the accumulation type. One image is one thread's.
template <class T>
void backward_general(const Pool2d& g, const T* x, const T* dy, acc_t<T>* dx) {
  using A = acc_t<T>;
  const int64_t image_size = g.h * g.w * g.c;
  parallel_for(g.n, Pool2d::grain(g.oh * g.ow * g.c * g.kernel * g.kernel), [=](int64_t begin, int64_t end) {
    A m[kRun], left[kRun], buffer[kRun];
    for (int64_t w = begin * g.oh * g.ow; w < end * g.oh * g.ow; ++w) {
      const int64_t image = w / (g.oh * g.ow), oy = w / g.ow % g.oh, ox = w % g.ow;
      const Pool2d::Range ys = g.window(oy, g.h), xs = g.window(ox, g.w);
      for (int64_t c = 0; c < g.c; c += kRun) {
        const int64_t n = std::min(kRun, g.c - c);
        const T* from = x + image * image_size + c;
        A* to = dx + image * image_size + c;
        window_max(g, ys, xs, from, m, buffer, n);
        std::copy_n(load_run(dy + w * g.c + c, buffer, n), n, left);
        for (int64_t iy = ys.begin; iy < ys.end; ++iy)
          for (int64_t ix = xs.begin; ix < xs.end; ++ix) {
            const int64_t at = (iy * g.w + ix) * g.c;
            give_if_max(load_run(from + at, buffer, n), m, left, to + at, n);
          }
      }
    }
  });
}

struct MaxPool2d final : Op {
  Pool2dOptions options;
  Saved x_;  // [n, h, w, c]

  explicit MaxPool2d(const Pool2dOptions& o) : options(o) {}
  const OpInfo& info() const override { return max_pool2d_info; }

  TensorSpec infer(Inputs in) const override {
    return {pool2d_geometry(name(), in[0], options).out_shape(), in[0].dtype()};
  }

  Tensor forward(Context& ctx, Inputs in, const TensorSpec& out) override {
    const Tensor x = in[0], y = Tensor::empty(out, ctx.device());
    const Pool2d g = pool2d_geometry(name(), x, options);
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) max_pool2d_forward_cuda(ctx, g, x, y);
    }
    if (!ctx.is_cuda())
      dispatch_floating(x.dtype(), name(), [&]<class T>() { forward_cpu(g, x.data<T>(), y.data<T>()); });
    x_ = x;
    return y;
  }

  Grads backward(Context& ctx, const Tensor& dy, const std::vector<bool>&) override {
    const Tensor x = *x_;
    const Pool2d g = pool2d_geometry(name(), x, options);
    Tensor dx;
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) max_pool2d_backward_cuda(ctx, g, x, dy, dx = Tensor::empty_like(x));
    }
    if (!ctx.is_cuda()) {
      dispatch_floating(x.dtype(), name(), [&]<class T>() {
        if (g.halves()) {
          dx = Tensor::empty_like(x);
          backward_halves(g, x.data<T>(), dy.data<T>(), dx.data<T>());
        } else {
          const Tensor sums = Tensor::zeros(x.shape(), dtype_of<acc_t<T>>());
          backward_general(g, x.data<T>(), dy.data<T>(), sums.data<acc_t<T>>());
          dx = sums.to(x.dtype());
        }
      });
    }
    return {dx};
  }
};

// A permutation of a grid: every pair of values is further apart than the check's step.
Tensor distinct(const Shape& shape, int64_t factor) {
  const Tensor x = Tensor::empty(shape, DType::f64);
  for (int64_t i = 0; i < x.numel(); ++i) x.data<double>()[i] = static_cast<double>(i * factor % x.numel()) / 8 - 2;
  return x;
}

std::vector<Sample> samples() {
  std::vector<Sample> list;
  const auto add = [&](const char* label, const Shape& shape, int64_t factor, Pool2dOptions o) {
    list.push_back({label, {distinct(shape, factor)}, [o](std::span<const Var> in) { return max_pool2d(in[0], o); }});
  };
  add("2x2", {2, 4, 6, 3}, 31, {});
  add("2x2, odd sizes", {1, 5, 7, 2}, 27, {});
  add("2x2, one window", {1, 2, 2, 1}, 3, {});
  add("3x3 stride 2 padding 1", {2, 5, 6, 3}, 97, {.kernel = 3, .stride = 2, .padding = 1});
  add("3x3 stride 1", {1, 4, 5, 2}, 27, {.kernel = 3, .stride = 1});
  add("2x2 stride 3", {2, 7, 5, 1}, 27, {.kernel = 2, .stride = 3});
  add("2x2 padding 1", {1, 3, 4, 2}, 7, {.padding = 1});
  add("empty batch", {0, 4, 4, 2}, 1, {});
  return list;
}
}  // namespace

const OpInfo max_pool2d_info{"max_pool2d", AmpTag::leave, "exact in any type: it only selects", samples};

std::unique_ptr<Op> make_max_pool2d(const Pool2dOptions& options) { return std::make_unique<MaxPool2d>(options); }

Var max_pool2d(const Var& x, const Pool2dOptions& options) { return apply(MaxPool2d(options), {x}); }

}  // namespace ht
