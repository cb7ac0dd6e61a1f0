// The shape of every reduction: a plan that all share, the CPU loops, and one Op class over a formula
// (sum, mean, var, norm; also the summing loop of the losses).
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "autograd/var.h"
#include "core/build.h"
#include "core/parallel.h"
#include "ops/ops.h"
#include "ops/runs.h"

namespace ht {

// How a reduction sees its input: neighbouring axes of one kind (kept or reduced) are merged into groups and axes of
// size 1 dropped. The innermost group is contiguous; the others are addressed by offset.
struct ReducePlan {
  struct Groups {
    int rank = 0;
    int64_t count = 1;                     // product of the sizes
    int64_t size[Shape::kMaxRank] = {};    // outermost first
    int64_t stride[Shape::kMaxRank] = {};  // in x, in elements

    HT_HD int64_t offset(int64_t index) const {
      int64_t sum = 0;
      for (int d = rank - 1; d > 0; --d) {
        sum += index % size[d] * stride[d];
        index /= size[d];
      }
      return rank > 0 ? sum + index * stride[0] : 0;
    }
  };

  Shape out;
  int64_t outputs = 1;  // elements of the output
  int64_t count = 1;    // elements of x behind one output
  int64_t inner = 1;    // size of the innermost group
  bool inner_reduced = true;
  Groups kept, reduced;  // without the innermost group; output = kept index (* inner + column when inner is kept)
};

// Throws Error on an axis out of range or named twice, and on an integer x. No axes: all.
inline ReducePlan plan_reduction(std::string_view who, const Tensor& x, const std::vector<int>& axes, bool keepdim) {
  check(is_floating(x.dtype()), who, ": the input must be floating; cast() it first (", Named{"x", x}, ")");
  const int rank = x.rank();
  bool reduce[Shape::kMaxRank] = {};
  for (const int axis : axes) {
    check(axis >= -rank && axis < rank, who, ": axis ", axis, " is out of range for rank ", rank, " (", Named{"x", x},
          ")");
    bool& chosen = reduce[axis < 0 ? axis + rank : axis];
    check(!chosen, who, ": axis ", axis, " is named twice (", Named{"x", x}, ")");
    chosen = true;
  }
  if (axes.empty()) std::fill_n(reduce, rank, true);

  ReducePlan plan;
  std::vector<int64_t> out;
  int64_t stride = 1;
  bool first = true, last_reduced = true;
  ReducePlan::Groups groups[2];  // kept, reduced; innermost first until the end
  for (int d = rank - 1; d >= 0; --d) {
    const int64_t size = x.dim(d);
    const bool r = reduce[d];
    if (!r || keepdim) out.insert(out.begin(), r ? 1 : size);
    (r ? plan.count : plan.outputs) *= size;
    if (size == 1) continue;
    ReducePlan::Groups& g = groups[r];
    if (first || (r == last_reduced && r == plan.inner_reduced && groups[0].rank + groups[1].rank == 0)) {
      plan.inner_reduced = r;
      plan.inner = first ? size : plan.inner * size;
    } else if (r == last_reduced && g.rank > 0) {
      g.size[g.rank - 1] *= size;
    } else {
      g.size[g.rank] = size;
      g.stride[g.rank++] = stride;
    }
    first = false;
    last_reduced = r;
    stride *= size;
  }
  for (ReducePlan::Groups& g : groups) {
    std::reverse(g.size, g.size + g.rank);
    std::reverse(g.stride, g.stride + g.rank);
    for (int d = 0; d < g.rank; ++d) g.count *= g.size[d];
  }
  plan.kept = groups[0];
  plan.reduced = groups[1];
  plan.out = Shape(std::span<const int64_t>(out));
  return plan;
}

// f(0) .. f(n - 1) combined in sixteen interleaved accumulators of type A, each beginning at `start`.
template <class A, class F, class Combine>
A lane_reduce(int64_t n, A start, F f, Combine combine) {
  constexpr int kLanes = 16;
  A lane[kLanes];
  std::fill_n(lane, kLanes, start);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int l = 0; l < kLanes; ++l) lane[l] = combine(lane[l], f(i + l));
  for (int l = 0; i < n; ++i, ++l) lane[l] = combine(lane[l], f(i));
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) lane[l] = combine(lane[l], lane[l + width]);
  return lane[0];
}

template <class A, class F>
A lane_sum(int64_t n, F f) {
  return lane_reduce(n, A(0), f, [](A a, A b) { return a + b; });
}

// Passes over NaN; -infinity of nothing.
template <class A, class F>
A lane_max(int64_t n, F f) {
  return lane_reduce(n, -std::numeric_limits<A>::infinity(), f, [](A a, A b) { return b > a ? b : a; });
}

inline constexpr int64_t kReduceRun = 256;  // elements summed in A, 16 a lane; longer sums add runs in double

// Sum of f(0) .. f(n - 1), in parallel; the order depends on n only.
template <class A, class F>
double sum_elements(int64_t n, F f) {
  constexpr int64_t kPart = 64 * kReduceRun;
  std::vector<double> partial(static_cast<size_t>((n + kPart - 1) / kPart));
  double* to = partial.data();
  parallel_for(static_cast<int64_t>(partial.size()), 1, [=](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      double total = 0;
      for (int64_t i = p * kPart; i < std::min(n, (p + 1) * kPart); i += kReduceRun)
        total += static_cast<double>(lane_sum<A>(std::min(kReduceRun, n - i), [&](int64_t k) { return f(i + k); }));
      to[p] = total;
    }
  });
  double total = 0;
  for (const double part : partial) total += part;
  return total;
}

namespace detail {
// One output of a plan whose innermost group is reduced: runs [begin, end) of its elements.
template <class T, class Map>
double reduce_row(const ReducePlan& p, const T* x, int64_t out, int64_t begin, int64_t end, Map map) {
  using A = acc_t<T>;
  A buffer[kReduceRun];
  const int64_t runs = (p.inner + kReduceRun - 1) / kReduceRun;
  double total = 0;
  for (int64_t u = begin; u < end; ++u) {
    const int64_t skip = u % runs * kReduceRun, n = std::min(kReduceRun, p.inner - skip);
    const A* v = load_run(x + p.kept.offset(out) + p.reduced.offset(u / runs) + skip, buffer, n);
    total += static_cast<double>(lane_sum<A>(n, [&](int64_t i) { return map(v[i], out); }));
  }
  return total;
}

// `width` neighbouring outputs of a plan whose innermost group is kept: rows [begin, end) of their elements.
template <class T, class Map>
void reduce_columns(const ReducePlan& p, const T* x, int64_t out, int64_t width, int64_t begin, int64_t end, Map map,
                    double* totals) {
  using A = acc_t<T>;
  A buffer[kReduceRun], sums[kReduceRun];
  const T* from = x + p.kept.offset(out / p.inner) + out % p.inner;
  std::fill_n(totals, width, 0.0);
  for (int64_t row = begin; row < end;) {
    std::fill_n(sums, width, A(0));
    for (const int64_t stop = std::min(end, row + 16); row < stop; ++row) {
      const A* v = load_run(from + p.reduced.offset(row), buffer, width);
      for (int64_t c = 0; c < width; ++c) sums[c] += map(v[c], out + c);
    }
    for (int64_t c = 0; c < width; ++c) totals[c] += static_cast<double>(sums[c]);
  }
}
}  // namespace detail

// Calls put(o, sum of map(x[i], o) over the elements i behind output o) once for each o. The order of summation
// depends on the plan only, not on the threads.
template <class T, class Map, class Put>
void reduce_cpu(const ReducePlan& p, const T* x, Map map, Put put) {
  const int64_t runs = (p.inner + kReduceRun - 1) / kReduceRun;
  const int64_t units = p.reduced.count * (p.inner_reduced ? runs : 1);  // what can be split between parts
  if (p.inner_reduced && units == 1) {                                   // short rows: one run each
    parallel_for(p.outputs, std::max<int64_t>(1, (1 << 14) / p.inner), [&](int64_t begin, int64_t end) {
      acc_t<T> buffer[kReduceRun];
      for (int64_t out = begin; out < end; ++out) {
        const acc_t<T>* v = load_run(x + out * p.inner, buffer, p.inner);
        put(out, static_cast<double>(lane_sum<acc_t<T>>(p.inner, [&](int64_t i) { return map(v[i], out); })));
      }
    });
    return;
  }
  const int64_t blocks = p.inner_reduced ? 1 : runs;  // of neighbouring outputs
  const int64_t most = std::min(units, 4096 / std::max<int64_t>(p.outputs, 1));
  const int64_t parts = std::clamp<int64_t>(p.outputs * p.count >> 16, 1, std::max<int64_t>(most, 1));
  std::vector<double> partial(static_cast<size_t>(parts > 1 ? parts * p.outputs : 0));
  const auto emit = [&](int64_t out, int64_t part, double total) {
    if (parts == 1) return put(out, total);
    partial[static_cast<size_t>(out * parts + part)] = total;
  };
  const int64_t items = p.outputs == 0 ? 0 : p.kept.count * blocks * parts;
  const int64_t work = std::max<int64_t>(1, p.outputs * p.count / std::max<int64_t>(items, 1));
  parallel_for(items, std::max<int64_t>(1, (1 << 14) / work), [&](int64_t from, int64_t to) {
    double totals[kReduceRun];
    for (int64_t item = from; item < to; ++item) {
      const int64_t part = item % parts, block = item / parts % blocks, kept = item / parts / blocks;
      const int64_t begin = units * part / parts, end = units * (part + 1) / parts;
      if (p.inner_reduced) {
        emit(kept, part, detail::reduce_row(p, x, kept, begin, end, map));
        continue;
      }
      const int64_t out = kept * p.inner + block * kReduceRun;
      const int64_t width = std::min(kReduceRun, p.inner - block * kReduceRun);
      detail::reduce_columns(p, x, out, width, begin, end, map, totals);
      for (int64_t c = 0; c < width; ++c) emit(out + c, part, totals[c]);
    }
  });
  if (parts == 1) return;
  for (int64_t out = 0; out < p.outputs; ++out) {
    double total = 0;
    for (int64_t part = 0; part < parts; ++part) total += partial[static_cast<size_t>(out * parts + part)];
    put(out, total);
  }
}

// Calls f(i, o) once for every element i of x, o its output; the way back of reduce_cpu.
template <class F>
void expand_cpu(const ReducePlan& p, F f) {
  const int64_t runs = (p.inner + kReduceRun - 1) / kReduceRun;
  const int64_t grain = std::max<int64_t>(1, (1 << 14) / std::clamp<int64_t>(p.inner, 1, kReduceRun));
  parallel_for(p.kept.count * p.reduced.count * runs, grain, [&p, f, runs](int64_t from, int64_t to) {
    for (int64_t item = from; item < to; ++item) {
      const int64_t skip = item % runs * kReduceRun, n = std::min(kReduceRun, p.inner - skip);
      const int64_t kept = item / runs / p.reduced.count, row = item / runs % p.reduced.count;
      const int64_t first = p.kept.offset(kept) + p.reduced.offset(row) + skip;
      if (p.inner_reduced) {
        for (int64_t i = 0; i < n; ++i) f(first + i, kept);
      } else {
        const int64_t out = kept * p.inner + skip;
        for (int64_t i = 0; i < n; ++i) f(first + i, out + i);
      }
    }
  });
}

// The CUDA launchers, instantiated in ops/reduce.cu. `stat` is the mean (FP32 or f64) where Fn::reads is x_mean, which
// forward fills first, and y where it is x_y.
template <class Fn>
void reduce_forward_cuda(Context& ctx, Fn fn, const ReducePlan& plan, const Tensor& x, const Tensor& stat,
                         const Tensor& y);
template <class Fn>
void reduce_backward_cuda(Context& ctx, Fn fn, const ReducePlan& plan, const Tensor& x, const Tensor& stat,
                          const Tensor& dy, const Tensor& dx);

namespace fn {
// What a reduction's backward reads besides dy.
enum class Reads : uint8_t { none, x_mean, x_y };
}  // namespace fn

// y = fn.finish(sum of fn.map(x, mean), n);  dx = fn.df(x, stat, dy, n). Sums run in FP32 or wider (f64 for f64).
template <class Fn>
class Reduce : public Op {
 public:
  explicit Reduce(ReduceOptions options, Fn f = {}) : fn(f), options_(std::move(options)) {}

  TensorSpec infer(Inputs in) const override {
    return {plan_reduction(name(), in[0], options_.axes, options_.keepdim).out, in[0].dtype()};
  }

  Tensor forward(Context& ctx, Inputs in, const TensorSpec& out) override {
    const Tensor x = in[0], y = Tensor::empty(out, ctx.device());
    plan_ = plan_reduction(name(), x, options_.axes, options_.keepdim);
    Tensor stat;
    if constexpr (Fn::reads == fn::Reads::x_mean)
      stat = Tensor::empty(out.shape, is_half(out.dtype) ? DType::f32 : out.dtype, ctx.device());
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) reduce_forward_cuda(ctx, fn, plan_, x, stat, y);
    }
    if (!ctx.is_cuda()) dispatch_floating(out.dtype, name(), [&]<class T>() { forward_cpu<T>(x, stat, y); });
    x_shape_ = x.shape();
    if constexpr (Fn::reads != fn::Reads::none) x_ = x;
    if constexpr (Fn::reads == fn::Reads::x_mean) stat_ = stat;
    if constexpr (Fn::reads == fn::Reads::x_y) stat_ = y;
    return y;
  }

  Grads backward(Context& ctx, const Tensor& dy, const std::vector<bool>&) override {
    const Tensor dx = Tensor::empty(x_shape_, dy.dtype(), ctx.device());
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) reduce_backward_cuda(ctx, fn, plan_, *x_, *stat_, dy, dx);
    }
    if (!ctx.is_cuda()) dispatch_floating(dy.dtype(), name(), [&]<class T>() { backward_cpu<T>(dy, dx); });
    return {dx};
  }

 protected:
  Fn fn;

 private:
  template <class T>
  void forward_cpu(const Tensor& x, const Tensor& stat, const Tensor& y) const {
    using A = acc_t<T>;
    const double n = static_cast<double>(plan_.count);
    const A* mean = nullptr;
    if constexpr (Fn::reads == fn::Reads::x_mean) {
      A* to = stat.data<A>();
      reduce_cpu(
          plan_, x.data<T>(), [](A v, int64_t) { return v; },
          [=](int64_t o, double total) { to[o] = static_cast<A>(total / n); });
      mean = to;
    }
    T* to = y.data<T>();
    reduce_cpu(
        plan_, x.data<T>(), [=, fn = fn](A v, int64_t o) { return fn.map(v, mean ? mean[o] : A(0)); },
        [=, fn = fn](int64_t o, double total) { to[o] = static_cast<T>(static_cast<A>(fn.finish(total, n))); });
  }

  template <class T>
  void backward_cpu(const Tensor& dy, const Tensor& dx) const {
    using A = acc_t<T>;
    const A n = static_cast<A>(plan_.count);
    const T* from = dy.data<T>();
    T* to = dx.data<T>();
    if constexpr (Fn::reads == fn::Reads::none) {
      expand_cpu(plan_, [=, fn = fn](int64_t i, int64_t o) {
        to[i] = static_cast<T>(fn.df(A(0), A(0), static_cast<A>(from[o]), n));
      });
    } else {
      using S = std::conditional_t<Fn::reads == fn::Reads::x_mean, A, T>;
      const T* x = x_->data<T>();
      const S* stat = stat_->data<S>();
      expand_cpu(plan_, [=, fn = fn](int64_t i, int64_t o) {
        to[i] = static_cast<T>(fn.df(static_cast<A>(x[i]), static_cast<A>(stat[o]), static_cast<A>(from[o]), n));
      });
    }
  }

  ReduceOptions options_;
  ReducePlan plan_;
  Shape x_shape_;
  Saved x_, stat_;
};

// The standard gradcheck cases: all axes and chosen ones, kept and dropped, odd sizes, sizes of 1.
std::vector<Sample> reduce_samples(Var (*f)(const Var&, const ReduceOptions&));

}  // namespace ht
