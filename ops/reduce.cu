// sum, mean, var and norm on CUDA, and the sums behind broadcasting and bias gradients.
#include "ops/gemm.h"
#include "ops/reduce.cuh"
#include "ops/reduce_functions.h"
#include "ops/reduce_to.h"

namespace ht {

namespace {
using reduce_detail::Same;
using reduce_detail::StoreWeighted;

template <class A>
struct StoreMean {
  A* mean;
  double n;
  __device__ void operator()(int64_t o, double total) const { mean[o] = static_cast<A>(total / n); }
};
template <class Fn, class A>
struct MapWithMean {
  Fn fn;
  const A* mean;  // null: not read
  __device__ A operator()(A v, int64_t o) const { return fn.map(v, mean ? mean[o] : A(0)); }
};
template <class Fn, class T>
struct StoreFinished {
  Fn fn;
  T* y;
  double n;
  __device__ void operator()(int64_t o, double total) const {
    y[o] = store_as<T>(static_cast<acc_t<T>>(fn.finish(total, n)));
  }
};
template <class Fn, class T, class S>
struct InputGradient {
  Fn fn;
  const T* x;  // null: not read
  const S* stat;
  const T* dy;
  T* dx;
  acc_t<T> n;
  __device__ void operator()(int64_t i, int64_t o) const {
    using A = acc_t<T>;
    dx[i] =
        store_as<T>(fn.df(x ? load_as(x[i]) : A(0), stat ? static_cast<A>(load_as(stat[o])) : A(0), load_as(dy[o]), n));
  }
};

// A plan that sums the axes where b's stride is 0.
ReducePlan reduce_plan(const BroadcastPlan& b) {
  ReducePlan plan;
  const int last = b.rank - 1;
  plan.inner = b.sizes[static_cast<size_t>(last)];
  plan.inner_reduced = b.b_strides[static_cast<size_t>(last)] == 0;
  for (int axis = 0; axis <= last; ++axis) {
    const size_t k = static_cast<size_t>(axis);
    const bool reduced = b.b_strides[k] == 0;
    (reduced ? plan.count : plan.outputs) *= b.sizes[k];
    if (axis == last) continue;
    ReducePlan::Groups& g = reduced ? plan.reduced : plan.kept;
    g.size[g.rank] = b.sizes[k];
    g.stride[g.rank++] = b.a_strides[k];
    g.count *= b.sizes[k];
  }
  return plan;
}
}  // namespace

template <class Fn>
void reduce_forward_cuda(Context& ctx, Fn fn, const ReducePlan& plan, const Tensor& x, const Tensor& stat,
                         const Tensor& y) {
  const double n = static_cast<double>(plan.count);
  dispatch_floating(x.dtype(), "reduce", [&]<class T>() {
    using A = acc_t<T>;
    const A* mean = nullptr;
    if constexpr (Fn::reads == fn::Reads::x_mean) {
      reduce_on_cuda(ctx, plan, Elements<T>{x.data<T>()}, Same<A>{}, StoreMean<A>{stat.data<A>(), n});
      mean = stat.data<A>();
    }
    reduce_on_cuda(ctx, plan, Elements<T>{x.data<T>()}, MapWithMean<Fn, A>{fn, mean},
                   StoreFinished<Fn, T>{fn, y.data<T>(), n});
  });
}

template <class Fn>
void reduce_backward_cuda(Context& ctx, Fn fn, const ReducePlan& plan, const Tensor& x, const Tensor& stat,
                          const Tensor& dy, const Tensor& dx) {
  dispatch_floating(dy.dtype(), "reduce", [&]<class T>() {
    using A = acc_t<T>;
    using S = std::conditional_t<Fn::reads == fn::Reads::x_mean, A, T>;
    constexpr bool kReads = Fn::reads != fn::Reads::none;
    expand_on_cuda(ctx, plan,
                   InputGradient<Fn, T, S>{fn, kReads ? x.data<T>() : nullptr, kReads ? stat.data<S>() : nullptr,
                                           dy.data<T>(), dx.data<T>(), static_cast<A>(plan.count)});
  });
}

#define HT_REDUCE(Fn)                                                                                           \
  template void reduce_forward_cuda<fn::Fn>(Context&, fn::Fn, const ReducePlan&, const Tensor&, const Tensor&,  \
                                            const Tensor&);                                                     \
  template void reduce_backward_cuda<fn::Fn>(Context&, fn::Fn, const ReducePlan&, const Tensor&, const Tensor&, \
                                             const Tensor&, const Tensor&);
HT_REDUCE(Sum)
HT_REDUCE(Mean)
HT_REDUCE(Variance)
HT_REDUCE(Norm)
#undef HT_REDUCE

void reduce_to_cuda(Context& ctx, const BroadcastPlan& plan, const Tensor& x, const Tensor& y) {
  dispatch_floating(x.dtype(), "reduce_to", [&]<class T>() {
    reduce_on_cuda(ctx, reduce_plan(plan), Elements<T>{x.data<T>()}, Same<acc_t<T>>{},
                   StoreWeighted<T>{y.data<T>(), 1});
  });
}

void sum_rows_cuda(Context& ctx, const Tensor& x, const Tensor& y) {
  if (x.numel() == 0) return y.zero_();
  BroadcastPlan plan;
  plan.push(x.numel() / y.numel(), y.numel(), 0);
  plan.push(y.numel(), 1, 1);
  reduce_to_cuda(ctx, plan, x, y);
}

}  // namespace ht
