// softmax and log_softmax on CUDA: a warp a row where the axis is the last one, else a thread a column.
#include "ops/softmax.cuh"
#include "ops/softmax.h"

namespace ht {

namespace {
template <int kLanes, bool kLog, class T>
__global__ void __launch_bounds__(kBlock) forward_kernel(SoftmaxPlan p, const T* x, T* y) {
  using A = acc_t<T>;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  HT_GRID_STRIDE(t, p.outer * p.inner * kLanes) {
    const int64_t row = t / kLanes, first = row / p.inner * p.n * p.inner + row % p.inner;
    const MaxAndRest<A> s = softmax_stats_of<kLanes>(x + first, p.n, p.inner, lane);
    const A log_sum = ::log1p(s.rest), scale = A(1) / (A(1) + s.rest);
    for (int64_t j = lane; j < p.n; j += kLanes) {
      const A d = load_as(x[first + j * p.inner]) - s.max;
      y[first + j * p.inner] = store_as<T>(kLog ? d - log_sum : ::exp(d) * scale);
    }
  }
}

template <int kLanes, bool kLog, class T>
__global__ void __launch_bounds__(kBlock) backward_kernel(SoftmaxPlan p, const T* y, const T* dy, T* dx) {
  using A = acc_t<T>;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  HT_GRID_STRIDE(t, p.outer * p.inner * kLanes) {
    const int64_t row = t / kLanes, first = row / p.inner * p.n * p.inner + row % p.inner;
    A sum = 0;
    for (int64_t j = lane; j < p.n; j += kLanes) {
      const int64_t i = first + j * p.inner;
      sum += kLog ? load_as(dy[i]) : load_as(dy[i]) * load_as(y[i]);
    }
    sum = lanes_sum<kLanes>(sum);
    for (int64_t j = lane; j < p.n; j += kLanes) {
      const int64_t i = first + j * p.inner;
      const A v = load_as(y[i]), d = load_as(dy[i]);
      dx[i] = store_as<T>(kLog ? d - ::exp(v) * sum : v * (d - sum));
    }
  }
}

// Calls f.operator()<lanes>(blocks): a grid whose threads divide into whole rows of lanes.
template <class F>
void with_lanes(Context& ctx, const SoftmaxPlan& p, F&& f) {
  if (p.inner == 1 && p.n > 8) {
    f.template operator()<32>(grid_for(ctx.cuda(), p.outer * 32));
  } else {
    f.template operator()<1>(grid_for(ctx.cuda(), p.outer * p.inner));
  }
}
}  // namespace

void softmax_forward_cuda(Context& ctx, bool log, const SoftmaxPlan& plan, const Tensor& x, const Tensor& y) {
  if (x.numel() == 0) return;
  dispatch_floating(x.dtype(), "softmax", [&]<class T>() {
    with_lanes(ctx, plan, [&]<int kLanes>(unsigned blocks) {
      const auto kernel = log ? forward_kernel<kLanes, true, T> : forward_kernel<kLanes, false, T>;
      kernel<<<blocks, kBlock, 0, ctx.cuda().stream()>>>(plan, x.data<T>(), y.data<T>());
      HT_LAUNCHED("softmax forward");
    });
  });
}

void softmax_backward_cuda(Context& ctx, bool log, const SoftmaxPlan& plan, const Tensor& y, const Tensor& dy,
                           const Tensor& dx) {
  if (dx.numel() == 0) return;
  dispatch_floating(dx.dtype(), "softmax", [&]<class T>() {
    with_lanes(ctx, plan, [&]<int kLanes>(unsigned blocks) {
      const auto kernel = log ? backward_kernel<kLanes, true, T> : backward_kernel<kLanes, false, T>;
      kernel<<<blocks, kBlock, 0, ctx.cuda().stream()>>>(plan, y.data<T>(), dy.data<T>(), dx.data<T>());
      HT_LAUNCHED("softmax backward");
    });
  });
}

}  // namespace ht
