#include "ops/reduce_to.h"

#include "core/build.h"
#include "core/parallel.h"
#include "ops/map_row.h"

namespace ht {

namespace {
constexpr int64_t kLanes = 16;     // interleaved sums of a run
constexpr int64_t kSegment = 512;  // additions in a row before their sum joins the total: rounding stays small

// The sum of a contiguous run: interleaved sums vectorise and round less than one.
template <class T>
acc_t<T> sum_row(const T* x, int64_t n) {
  using A = acc_t<T>;
  A lanes[kLanes] = {};
  Operand<Step::moves, T> in(x);
  for (int64_t from = 0; from < n; from += kRowBlock) {
    const int64_t m = std::min(kRowBlock, n - from), base = converts<T> ? 0 : from;
    in.load(from, m);
    int64_t i = 0;
    for (; i + kLanes <= m; i += kLanes)
      for (int64_t k = 0; k < kLanes; ++k) lanes[k] += in[base + i + k];
    for (int64_t k = 0; i < m; ++i, ++k) lanes[k] += in[base + i];
  }
  for (int64_t half = kLanes / 2; half > 0; half /= 2)
    for (int64_t k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  return lanes[0];
}

// sums[0, n) += x[0, n), n <= kRowBlock.
template <class T>
void add_row(const T* x, int64_t n, acc_t<T>* __restrict sums) {
  Operand<Step::moves, T> in(x);
  in.load(0, n);
  for (int64_t i = 0; i < n; ++i) sums[i] += in[i];
}

// Outputs [begin, end) over the reduced elements [r_begin, r_end). In both plans `a` is the stride in x.
template <class T>
void reduce_outputs(const BroadcastPlan& kept, const BroadcastPlan& reduced, const T* x, int64_t begin, int64_t end,
                    int64_t r_begin, int64_t r_end, acc_t<T>* out) {
  using A = acc_t<T>;
  const int64_t k_step = kept.a_stride(), r_step = reduced.a_stride();
  for_each_row(kept, begin, end, [&](int64_t o, int64_t x_offset, int64_t, int64_t n) {
    A* const to = out + o;
    const T* const from = x + x_offset;
    if (k_step == 1) {  // x's innermost axis is kept: add short rows
      for (int64_t at = 0; at < n; at += kRowBlock) {
        const int64_t m = std::min(kRowBlock, n - at);
        std::fill_n(to + at, m, A(0));
        for (int64_t r = r_begin; r < r_end; r += kSegment) {
          A sums[kRowBlock];
          std::fill_n(sums, m, A(0));
          for_each_row(reduced, r, std::min(r + kSegment, r_end), [&](int64_t, int64_t offset, int64_t, int64_t rows) {
            for (int64_t k = 0; k < rows; ++k) add_row(from + at + offset + k * r_step, m, sums);
          });
          for (int64_t k = 0; k < m; ++k) to[at + k] += sums[k];
        }
      }
    } else {  // it is reduced: sum along it
      for (int64_t i = 0; i < n; ++i) {
        A sum = 0;
        for (int64_t r = r_begin; r < r_end; r += kSegment * kLanes) {
          A part = 0;
          for_each_row(
              reduced, r, std::min(r + kSegment * kLanes, r_end),
              [&](int64_t, int64_t offset, int64_t, int64_t m) { part += sum_row(from + i * k_step + offset, m); });
          sum += part;
        }
        to[i] = sum;
      }
    }
  });
}

// Where fewer than 64 runs of outputs share the work, each is cut into `parts` partial sums, a number that the shapes
// alone give.
template <class T>
void reduce_cpu(const BroadcastPlan& plan, const Tensor& x, const Tensor& y) {
  using A = acc_t<T>;
  BroadcastPlan kept, reduced;
  for (size_t i = 0; i < static_cast<size_t>(plan.rank); ++i)
    (plan.b_strides[i] ? kept : reduced).push(plan.sizes[i], plan.a_strides[i], plan.b_strides[i]);
  if (kept.rank == 0) kept.push(1, 0, 0);

  const int64_t outputs = y.numel(), each = x.numel() / outputs;
  const int64_t run = kept.a_stride() == 1 ? std::min(kept.sizes[static_cast<size_t>(kept.rank) - 1], kRowBlock) : 1;
  const int64_t parts = std::clamp<int64_t>(std::min({x.numel() >> 15, each / 8, 64 * run / outputs}), 1, 64);
  const bool direct = parts == 1 && !converts<T>;
  const Tensor scratch = direct ? y : Tensor::empty({parts, outputs}, dtype_of<A>());
  A* const sums = scratch.data<A>();
  const T* const in = x.data<T>();
  parallel_for(parts * outputs, std::max<int64_t>(1, (parts << 14) / each),
               [=, &kept, &reduced](int64_t i, int64_t end) {
                 while (i < end) {
                   const int64_t part = i / outputs, stop = std::min(end, (part + 1) * outputs);
                   reduce_outputs(kept, reduced, in, i - part * outputs, stop - part * outputs, each * part / parts,
                                  each * (part + 1) / parts, sums + part * outputs);
                   i = stop;
                 }
               });
  if (direct) return;
  T* const out = y.data<T>();
  parallel_for(outputs, 1 << 12, [=](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      A sum = sums[o];
      for (int64_t p = 1; p < parts; ++p) sum += sums[p * outputs + o];
      out[o] = static_cast<T>(sum);
    }
  });
}
}  // namespace

Tensor reduce_to(Context& ctx, const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  check(shape.rank() <= x.rank() && broadcast(x.shape(), shape, "reduce_to") == x.shape(), "reduce_to: shape ", shape,
        " does not broadcast to x (", Named{"x", x}, ")");
  if (shape.numel() == x.numel()) return x.view(shape);
  if (x.numel() == 0) return Tensor::zeros(shape, x.dtype(), x.device());
  const Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  const BroadcastPlan plan = plan_broadcast(x.shape(), shape, x.shape());
  if constexpr (kCudaBuild) {
    if (ctx.is_cuda()) reduce_to_cuda(ctx, plan, x, y);
  }
  if (!ctx.is_cuda()) dispatch_floating(x.dtype(), "reduce_to", [&]<class T>() { reduce_cpu<T>(plan, x, y); });
  return y;
}

}  // namespace ht
