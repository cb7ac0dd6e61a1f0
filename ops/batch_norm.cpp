// y = gamma xhat + beta, xhat = (x - mean) invstd, invstd = 1 / sqrt(var + eps), over all axes but the last (n values a
// channel); var is the biased variance of the batch in training, the running one in evaluation.
// dbeta = sum dy;  dgamma = sum dy xhat;  evaluation: dx = gamma invstd dy;
// training: dx = gamma invstd (dy - dbeta / n - xhat dgamma / n)   (Ioffe and Szegedy 2015, section 3).
#include "ops/batch_norm.h"

#include <cmath>
#include <utility>

#include "core/build.h"
#include "core/parallel.h"
#include "ops/pool.h"
#include "ops/registry.h"
#include "ops/runs.h"
#include "ops/samples.h"

namespace ht {

namespace {
// x as [rows, channels], cut into blocks of rows times runs of channels. The cut depends on the shape only, so that
// sums are the same for every thread count.
struct Tiles {
  int64_t rows, channels, block, blocks, runs;

  explicit Tiles(const Shape& s) : rows(s.product(0, s.rank() - 1)), channels(s.back()) {
    block = std::clamp<int64_t>((1 << 14) / std::clamp<int64_t>(channels, 1, kRun), 32, 256);
    blocks = (rows + block - 1) / block;
    runs = (channels + kRun - 1) / kRun;
  }
  int64_t count(int64_t b) const { return std::min(block, rows - b * block); }  // rows of a block
  // f(block, first row, end row, first channel, channels) for every tile, in parallel.
  template <class F>
  void each(F f) const {
    parallel_for(blocks * runs, 1, [*this, f](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t b = i / runs, c = i % runs * kRun;
        f(b, b * block, b * block + count(b), c, std::min(kRun, channels - c));
      }
    });
  }
};

constexpr int kGroup = 4;  // rows added at once, so that the sums are loaded and stored a quarter as often

// sum += d, squares += d^2 with d = x - shift, for kGroup rows or one.
template <int rows, class A>
void add_moments(const A* const* x, const A* __restrict shift, A* __restrict sum, A* __restrict squares, int64_t n) {
  const A* __restrict x0 = x[0], * __restrict x1 = x[rows > 1], * __restrict x2 = x[rows > 1 ? 2 : 0], * __restrict x3 = x[rows > 1 ? 3 : 0];
  for (int64_t i = 0; i < n; ++i) {
    const A d0 = x0[i] - shift[i];
    if constexpr (rows == 1) {
      sum[i] += d0;
      squares[i] += d0 * d0;
    } else {
      const A d1 = x1[i] - shift[i], d2 = x2[i] - shift[i], d3 = x3[i] - shift[i];
      sum[i] += (d0 + d1) + (d2 + d3);
      squares[i] += (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3);
    }
  }
}

// sum += dy, product += dy (x - mean).
template <class A>
void add_gradients(const A* __restrict x, const A* __restrict dy, const A* __restrict mean, A* __restrict sum,
                   A* __restrict product, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    sum[i] += dy[i];
    product[i] += dy[i] * (x[i] - mean[i]);
  }
}

// Mean and sum of squared deviations of each channel -> stats [2, c] f64. Within a block deviations are taken from the
// block's first row, which loses nothing when the mean is far larger than the spread; blocks are then combined in
// double (Chan, Golub and LeVeque 1979), in order.
template <class T>
void batch_moments(const Tiles& t, const T* x, double* stats) {
  using A = acc_t<T>;
  const int64_t channels = t.channels;
  const Tensor partial = Tensor::empty({t.blocks, 2, channels}, dtype_of<A>());
  A* parts = partial.data<A>();
  t.each([=](int64_t b, int64_t begin, int64_t end, int64_t c, int64_t n) {
    A first[kRun], buffer[kGroup][kRun], sum[kRun] = {}, squares[kRun] = {};
    const A* row[kGroup];
    std::copy_n(load_run(x + begin * channels + c, buffer[0], n), n, first);
    int64_t r = begin;
    for (; r + kGroup <= end; r += kGroup) {
      for (int k = 0; k < kGroup; ++k) row[k] = load_run(x + (r + k) * channels + c, buffer[k], n);
      add_moments<kGroup>(row, first, sum, squares, n);
    }
    for (; r < end; ++r) {
      row[0] = load_run(x + r * channels + c, buffer[0], n);
      add_moments<1>(row, first, sum, squares, n);
    }
    A *mean = parts + 2 * b * channels + c, *m2 = mean + channels;  // the mean less the block's first row
    const A count = static_cast<A>(end - begin);
    for (int64_t i = 0; i < n; ++i) {
      const A offset = sum[i] / count;
      mean[i] = offset;
      m2[i] = std::max(squares[i] - offset * sum[i], A(0));  // in this order a NaN stays
    }
  });
  parallel_for(channels, 64, [=](int64_t begin, int64_t end) {
    double *mean = stats, *m2 = stats + channels;
    std::fill(mean + begin, mean + end, 0.0);
    std::fill(m2 + begin, m2 + end, 0.0);
    double before = 0;
    for (int64_t b = 0; b < t.blocks; ++b) {
      const A* part = parts + 2 * b * channels;
      const T* first = x + b * t.block * channels;
      const double count = static_cast<double>(t.count(b)), share = count / (before + count);
      for (int64_t i = begin; i < end; ++i) {
        const double delta = static_cast<double>(static_cast<A>(first[i])) + static_cast<double>(part[i]) - mean[i];
        mean[i] += delta * share;
        m2[i] += static_cast<double>(part[channels + i]) + delta * delta * before * share;
      }
      before += count;
    }
  });
}

template <class T>
void normalise(const Tiles& t, const T* x, const acc_t<T>* gamma, const acc_t<T>* beta, const acc_t<T>* mean,
               const acc_t<T>* invstd, T* y) {
  using A = acc_t<T>;
  t.each([=, channels = t.channels](int64_t, int64_t begin, int64_t end, int64_t c, int64_t n) {
    A buffer[kRun], out[kRun], slope[kRun];
    for (int64_t i = 0; i < n; ++i) slope[i] = gamma[c + i] * invstd[c + i];
    for (int64_t r = begin; r < end; ++r) {
      const A* __restrict in = load_run(x + r * channels + c, buffer, n);
      A* __restrict to = run_target(y + r * channels + c, out);
      for (int64_t i = 0; i < n; ++i) to[i] = (in[i] - mean[c + i]) * slope[i] + beta[c + i];
      store_run(to, y + r * channels + c, n);
    }
  });
}

// sums [2, c] f64: sum dy and sum dy (x - mean).
template <class T>
void gradient_sums(const Tiles& t, const T* x, const T* dy, const acc_t<T>* mean, double* sums) {
  using A = acc_t<T>;
  const int64_t channels = t.channels;
  const Tensor partial = Tensor::empty({t.blocks, 2, channels}, dtype_of<A>());
  A* parts = partial.data<A>();
  t.each([=](int64_t b, int64_t begin, int64_t end, int64_t c, int64_t n) {
    A buffer[2][kRun], sum[kRun] = {}, product[kRun] = {};
    for (int64_t r = begin; r < end; ++r) {
      const int64_t at = r * channels + c;
      add_gradients(load_run(x + at, buffer[0], n), load_run(dy + at, buffer[1], n), mean + c, sum, product, n);
    }
    std::copy_n(sum, n, parts + 2 * b * channels + c);
    std::copy_n(product, n, parts + (2 * b + 1) * channels + c);
  });
  parallel_for(2 * channels, 64, [=](int64_t begin, int64_t end) {
    std::fill(sums + begin, sums + end, 0.0);
    for (int64_t b = 0; b < t.blocks; ++b)
      for (int64_t i = begin; i < end; ++i) sums[i] += static_cast<double>(parts[2 * b * channels + i]);
  });
}

// dx = slope (dy - offset - (x - mean) pull), all but dy per channel; offset and pull are 0 in evaluation.
template <class T>
void input_gradient(const Tiles& t, const T* x, const T* dy, const acc_t<T>* mean, const acc_t<T>* slope,
                    const acc_t<T>* offset, const acc_t<T>* pull, T* dx) {
  using A = acc_t<T>;
  t.each([=, channels = t.channels](int64_t, int64_t begin, int64_t end, int64_t c, int64_t n) {
    A buffer[2][kRun], out[kRun];
    for (int64_t r = begin; r < end; ++r) {
      const int64_t at = r * channels + c;
      const A* __restrict g = load_run(dy + at, buffer[1], n), * __restrict s = slope + c;
      A* __restrict to = run_target(dx + at, out);
      if (offset) {
        const A* __restrict in = load_run(x + at, buffer[0], n), * __restrict m = mean + c, * __restrict o = offset + c, * __restrict p = pull + c;
        for (int64_t i = 0; i < n; ++i) to[i] = s[i] * (g[i] - o[i] - (in[i] - m[i]) * p[i]);
      } else {
        for (int64_t i = 0; i < n; ++i) to[i] = s[i] * g[i];
      }
      store_run(to, dx + at, n);
    }
  });
}

struct BatchNorm final : Op {
  BatchNormOptions options;
  RunningStats running;            // constants of the graph
  BatchNormTail tail;              // on CUDA only, where the same passes do its work
  std::shared_ptr<ConvNorm> link;  // to the convolution in front of it; may be null
  Saved x_, gamma_, beta_;
  Tensor mean_, invstd_;  // [c], as used
  TensorSpec out_;

  const OpInfo& info() const override { return batch_norm_info; }

  TensorSpec infer(Inputs in) const override {
    const Tensor& x = in[0];
    const Named nx{"x", x};
    check(x.rank() >= 2, name(), ": x must be [n, ..., c], not of rank ", x.rank(), " (", nx, ")");
    check(is_floating(x.dtype()), name(), ": x must be floating (", nx, ")");
    const DType stats = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
    const auto check_channels = [&](std::string_view what, const Tensor& t) {
      check(t.shape() == Shape{x.shape().back()} && t.dtype() == stats && t.device() == x.device(), name(), ": ", what,
            " must be [", x.shape().back(), "] ", stats, " ", x.device(), " (", Named{what, t}, ", ", nx, ")");
    };
    check_channels("gamma", in[1]);
    check_channels("beta", in[2]);
    check(running.mean.defined() == running.var.defined(), name(),
          ": give both running_mean and running_var or neither (", nx, ")");
    if (running.mean) {
      check_channels("running_mean", running.mean);
      check_channels("running_var", running.var);
    }
    check(options.training || running.mean, name(), ": evaluation needs running_mean and running_var (", nx, ")");
    if (const Tensor& count = running.num_batches_tracked)
      check(count.dtype() == DType::i64 && count.numel() == 1 && count.device() == x.device(), name(),
            ": num_batches_tracked must be one i64 on ", x.device(), " (", Named{"num_batches_tracked", count}, ")");
    check(options.eps >= 0 && std::isfinite(options.eps), name(), ": eps ", options.eps, " must be finite and >= 0 (",
          nx, ")");
    check(options.momentum >= 0 && options.momentum <= 1, name(), ": momentum ", options.momentum,
          " must be in [0, 1] (", nx, ")");
    check(!options.training || Tiles(x.shape()).rows != 1, name(),
          ": expected more than 1 value per channel in training; use a larger batch or evaluation (", nx, ")");
    if (!tail.pool) return x.spec();
    return {pool2d_geometry(name(), x, {}).out_shape(), x.dtype()};
  }

  Tensor forward(Context& ctx, Inputs in, const TensorSpec& out) override {
    const Tensor x = in[0], gamma = in[1], beta = in[2], y = Tensor::empty(out, ctx.device());
    mean_ = Tensor::empty_like(gamma), invstd_ = Tensor::empty_like(gamma);
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda())
        batch_norm_forward_cuda(ctx, options, x, gamma, beta, running, y, mean_, invstd_, tail,
                                link ? std::exchange(link->sums, {}) : Tensor());
    }
    if (!ctx.is_cuda()) {
      dispatch_floating(x.dtype(), name(), [&]<class T>() {
        using A = acc_t<T>;
        const Tiles t(x.shape());
        const Tensor stats = Tensor::empty({2, t.channels}, DType::f64);
        if (options.training) {
          batch_moments(t, x.data<T>(), stats.data<double>());
          update_running<A>(t.rows, stats.data<double>());
        }
        A *mean = mean_.data<A>(), *invstd = invstd_.data<A>();
        for (int64_t c = 0; c < t.channels; ++c) {
          const double m = options.training ? stats.data<double>()[c] : running.mean.data<A>()[c];
          const double var = options.training ? stats.data<double>()[t.channels + c] /
                                                    static_cast<double>(std::max<int64_t>(t.rows, 1))
                                              : running.var.data<A>()[c];
          mean[c] = static_cast<A>(m);
          invstd[c] = static_cast<A>(1 / std::sqrt(var + options.eps));
        }
        normalise(t, x.data<T>(), gamma.data<A>(), beta.data<A>(), mean, invstd, y.data<T>());
      });
    }
    x_ = x, gamma_ = gamma, beta_ = beta, out_ = out;
    return y;
  }

  bool recomputes() const override { return x_ && x_->device().is_cuda(); }
  Tensor recompute(Context& ctx) override {
    const Tensor y = Tensor::empty(out_, ctx.device());
    if constexpr (kCudaBuild) batch_norm_normalise_cuda(ctx, *x_, *gamma_, *beta_, mean_, invstd_, y, tail);
    return y;
  }

  // A batch with a NaN, an infinity or an overflowing variance in any channel leaves all running values as they are.
  template <class A>
  void update_running(int64_t rows, const double* stats) const {
    if (rows == 0) return;
    if (running.num_batches_tracked) {
      ++*running.num_batches_tracked.data<int64_t>();
      bump({running.num_batches_tracked});
    }
    if (!running.mean) return;
    const int64_t channels = running.mean.numel();
    const double unbiased = 1 / static_cast<double>(rows - 1), m = options.momentum;
    for (int64_t c = 0; c < channels; ++c)
      if (!std::isfinite(static_cast<A>(stats[c])) || !std::isfinite(static_cast<A>(stats[channels + c] * unbiased)))
        return;
    A *mean = running.mean.data<A>(), *var = running.var.data<A>();
    for (int64_t c = 0; c < channels; ++c) {
      mean[c] = static_cast<A>((1 - m) * mean[c] + m * stats[c]);
      var[c] = static_cast<A>((1 - m) * var[c] + m * stats[channels + c] * unbiased);
    }
    bump({running.mean, running.var});
  }

  static void bump(std::initializer_list<Tensor> written) {
    for (const Tensor& t : written)
      if (t) t.bump_version();
  }

  Grads backward(Context& ctx, const Tensor& dy, const std::vector<bool>& needs) override {
    const Tensor x = *x_, gamma = *gamma_;
    const Tensor dx = needs[0] ? Tensor::empty_like(x) : Tensor();
    const Tensor dgamma = needs[1] ? Tensor::empty_like(gamma) : Tensor();
    const Tensor dbeta = needs[2] ? Tensor::empty_like(gamma) : Tensor();
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda())
        batch_norm_backward_cuda(ctx, options.training, x, gamma, *beta_, mean_, invstd_, dy, dx, dgamma, dbeta, tail);
    }
    if (!ctx.is_cuda())
      dispatch_floating(x.dtype(), name(), [&]<class T>() { backward_cpu<T>(x, gamma, dy, dx, dgamma, dbeta); });
    return {dx, dgamma, dbeta};
  }

  template <class T>
  void backward_cpu(const Tensor& x, const Tensor& gamma, const Tensor& dy, const Tensor& dx, const Tensor& dgamma,
                    const Tensor& dbeta) const {
    using A = acc_t<T>;
    const Tiles t(x.shape());
    const bool sums_in_dx = dx && options.training;
    const Tensor sums = Tensor::zeros({2, t.channels}, DType::f64);
    const A *mean = mean_.data<A>(), *invstd = invstd_.data<A>();
    if (sums_in_dx || dgamma || dbeta) gradient_sums(t, x.data<T>(), dy.data<T>(), mean, sums.data<double>());
    const Tensor per_channel = Tensor::empty({3, t.channels}, dtype_of<A>());
    A *slope = per_channel.data<A>(), *offset = slope + t.channels, *pull = offset + t.channels;
    const double n = static_cast<double>(std::max<int64_t>(t.rows, 1));
    for (int64_t c = 0; c < t.channels; ++c) {
      const double sum = sums.data<double>()[c], product = sums.data<double>()[t.channels + c], inv = invstd[c];
      slope[c] = gamma.data<A>()[c] * invstd[c];
      offset[c] = static_cast<A>(sum / n);
      pull[c] = static_cast<A>(product * inv * inv / n);
      if (dgamma) dgamma.data<A>()[c] = static_cast<A>(product * inv);
      if (dbeta) dbeta.data<A>()[c] = static_cast<A>(sum);
    }
    if (dx)
      input_gradient(t, x.data<T>(), dy.data<T>(), mean, slope, sums_in_dx ? offset : nullptr, pull, dx.data<T>());
  }
};

std::vector<Sample> samples() {
  std::vector<Sample> list;
  for (const Shape& shape : {Shape{6, 3}, Shape{2, 1}, Shape{2, 3, 5, 4}, Shape{1, 3, 3, 2}, Shape{7, 5, 2}}) {
    for (bool training : {true, false}) {
      const uint64_t stream = list.size();
      const Shape c{shape.back()};
      const Tensor mean = training ? Tensor() : sample_uniform(c, 300 + stream, -1, 1);
      const Tensor var = training ? Tensor() : sample_uniform(c, 400 + stream, 0.5, 2);
      // A large eps where there are few values: xhat of two values is otherwise nearly constant.
      const BatchNormOptions options{.training = training, .eps = shape == Shape{2, 1} ? 0.1 : 1e-5};
      list.push_back({str(training ? "training" : "evaluation", ", x ", shape),
                      {sample_uniform(shape, stream, -2, 2), sample_signed(c, 100 + stream, 0.5, 2),
                       sample_uniform(c, 200 + stream, -1, 1)},
                      [=](std::span<const Var> in) {
                        const auto like_gamma = [&](const Tensor& t) {  // samples run in other dtypes and devices too
                          return t ? t.to(in[1].dtype()).to(in[1].device()) : t;
                        };
                        return batch_norm(in[0], in[1], in[2], {like_gamma(mean), like_gamma(var)}, options);
                      }});
    }
  }
  return list;
}
}  // namespace

const OpInfo batch_norm_info{"batch_norm",
                             AmpTag::leave,
                             "sums and statistics in FP32 in any type",
                             samples,
                             {ArgTag::by_tag, ArgTag::keep, ArgTag::keep}};

std::unique_ptr<Op> make_batch_norm(const RunningStats& running, const BatchNormOptions& options, BatchNormTail tail,
                                    std::shared_ptr<ConvNorm> link) {
  auto op = std::make_unique<BatchNorm>();
  op->options = options, op->running = running, op->tail = tail, op->link = std::move(link);
  return op;
}

Var batch_norm(const Var& x, const Var& gamma, const Var& beta, const RunningStats& running,
               const BatchNormOptions& options) {
  return apply(make_batch_norm(running, options), {x, gamma, beta});
}

}  // namespace ht
