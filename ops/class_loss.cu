// cross_entropy and nll_loss on CUDA. A label out of range cannot throw from here: its row's loss and gradient are NaN,
// which the next host read of the loss shows. D, of loss and dy, is T or, beside a half T, float.
#include "ops/class_loss.h"
#include "ops/reduce.cuh"
#include "ops/softmax.cuh"

namespace ht {

namespace {
constexpr int kLanes = 32;

template <class F>
void dispatch_with_labels(DType dtype, DType of_loss, std::string_view who, const Tensor& labels, F&& f) {
  dispatch_widened(dtype, of_loss, who, [&]<class T, class D>() {
    labels.dtype() == DType::i32 ? f.template operator()<T, D, int32_t>() : f.template operator()<T, D, int64_t>();
  });
}

template <class T, class L, class Sum>
__global__ void __launch_bounds__(kBlock)
    cross_entropy_rows_kernel(const T* logits, const L* labels, int64_t n, int64_t classes, double smoothing,
                              acc_t<T>* stats, Sum sum_of_losses) {
  let_next_start();
  wait_for_previous();
  using A = acc_t<T>;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const A e = static_cast<A>(smoothing);
  double losses = 0;
  HT_GRID_STRIDE(t, n * kLanes) {
    const int64_t i = t / kLanes, label = static_cast<int64_t>(labels[i]);
    const T* row = logits + i * classes;
    const MaxAndRest<A> s = softmax_stats_of<kLanes>(row, classes, 1, lane);
    const A log_sum = ::log1p(s.rest);
    A even = 0;
    if (e > A(0)) {  // apart: a logit of -inf would make 0 * inf of it
      A sum = 0;
      for (int64_t j = lane; j < classes; j += kLanes) sum += load_as(row[j]) - s.max;
      even = e * (log_sum - lanes_sum<kLanes>(sum) / static_cast<A>(classes));
    }
    if (lane > 0) continue;
    const bool valid = label >= 0 && label < classes;
    stats[2 * i] = s.max;
    stats[2 * i + 1] = log_sum;
    losses += static_cast<double>(valid ? (A(1) - e) * (log_sum - (load_as(row[label]) - s.max)) + even
                                        : static_cast<A>(NAN));
  }
  sum_of_losses.add_block(losses);
}

template <class T, class D, class L>
__global__ void __launch_bounds__(kBlock)
    cross_entropy_gradient_kernel(const T* logits, const L* labels, int64_t n, int64_t classes, double smoothing,
                                  double weight, const acc_t<T>* stats, const D* dy, T* dx) {
  let_next_start();
  wait_for_previous();
  using A = acc_t<T>;
  const A e = static_cast<A>(smoothing), even = e / static_cast<A>(classes);
  const A g = static_cast<A>(static_cast<double>(load_as(*dy)) * weight);
  HT_GRID_STRIDE(k, n * classes) {
    const int64_t i = k / classes, label = labels[i];
    const A d = load_as(logits[k]) - stats[2 * i] - stats[2 * i + 1];
    A q = k % classes == label ? ::expm1(d) + (e - even) : ::exp(d) - even;
    if (label < 0 || label >= classes) q = static_cast<A>(NAN);
    dx[k] = store_as<T>(g * q);
  }
}

// What the summing engine adds: the loss of row i.
template <class T, class L>
struct NllOf {
  const T* x;
  const L* labels;
  int64_t classes;
  __device__ acc_t<T> operator()(int64_t i) const {
    const int64_t label = labels[i];
    return label >= 0 && label < classes ? -load_as(x[i * classes + label]) : static_cast<acc_t<T>>(NAN);
  }
};

template <class T, class D, class L>
__global__ void nll_gradient_kernel(const L* labels, int64_t n, int64_t classes, double weight, const D* dy, T* dx) {
  let_next_start();
  wait_for_previous();
  const acc_t<T> g = static_cast<acc_t<T>>(-static_cast<double>(load_as(*dy)) * weight);
  HT_GRID_STRIDE(i, n) {
    if (labels[i] >= 0 && labels[i] < classes) dx[i * classes + labels[i]] = store_as<T>(g);
  }
}
}  // namespace

void cross_entropy_forward_cuda(Context& ctx, const CrossEntropyOptions& options, const Tensor& logits,
                                const Tensor& labels, const Tensor& stats, const Tensor& loss) {
  const int64_t n = logits.dim(0);
  dispatch_with_labels(logits.dtype(), loss.dtype(), "cross_entropy", labels, [&]<class T, class D, class L>() {
    const unsigned blocks = grid_for(ctx.cuda(), n * kLanes);
    Tensor partial;
    const auto sum = weighted_sum_of_blocks<D>(ctx, blocks, reduction_weight(options.reduction, n), loss, partial);
    launch_early(ctx.cuda(), cross_entropy_rows_kernel<T, L, std::decay_t<decltype(sum)>>, blocks, kBlock,
                 logits.data<T>(), labels.data<L>(), n, logits.dim(1), options.label_smoothing, stats.data<acc_t<T>>(),
                 sum);
  });
}

void cross_entropy_backward_cuda(Context& ctx, const CrossEntropyOptions& options, const Tensor& logits,
                                 const Tensor& labels, const Tensor& stats, const Tensor& dy, const Tensor& dx) {
  if (dx.numel() == 0) return;
  const int64_t n = logits.dim(0);
  dispatch_with_labels(dx.dtype(), dy.dtype(), "cross_entropy", labels, [&]<class T, class D, class L>() {
    launch_early(ctx.cuda(), cross_entropy_gradient_kernel<T, D, L>, grid_for(ctx.cuda(), dx.numel()), kBlock,
                 logits.data<T>(), labels.data<L>(), n, logits.dim(1), options.label_smoothing,
                 reduction_weight(options.reduction, n), stats.data<acc_t<T>>(), dy.data<D>(), dx.data<T>());
  });
}

void nll_loss_forward_cuda(Context& ctx, Reduction reduction, const Tensor& x, const Tensor& labels,
                           const Tensor& loss) {
  const int64_t n = x.dim(0);
  dispatch_with_labels(x.dtype(), loss.dtype(), "nll_loss", labels, [&]<class T, class D, class L>() {
    weighted_sum_on_cuda<D>(ctx, NllOf<T, L>{x.data<T>(), labels.data<L>(), x.dim(1)}, n,
                            reduction_weight(reduction, n), loss);
  });
}

void nll_loss_backward_cuda(Context& ctx, Reduction reduction, const Tensor& labels, const Tensor& dy,
                            const Tensor& dx) {
  if (dx.numel() == 0) return;
  const int64_t n = dx.dim(0);
  dispatch_with_labels(dx.dtype(), dy.dtype(), "nll_loss", labels, [&]<class T, class D, class L>() {
    launch_early(ctx.cuda(), nll_gradient_kernel<T, D, L>, grid_for(ctx.cuda(), n), kBlock, labels.data<L>(), n,
                 dx.dim(1), reduction_weight(reduction, n), dy.data<D>(), dx.data<T>());
  });
}

}  // namespace ht
