// The update of optim/sgd.cpp on CUDA: one launch for up to 48 parameters, all state read from device memory.
#include "optim/sgd.h"
#include "optim/whole_step.cuh"

namespace ht::optim {

namespace {
template <class A>
struct Coefficients {
  A decay, keep, take, momentum, shrink, lr;
};

template <class A>
__device__ Coefficients<A> coefficients(const SgdOptions& o, double lr, bool first) {
  return {static_cast<A>(o.decoupled_weight_decay ? 0 : o.weight_decay),
          static_cast<A>(first ? 0 : o.momentum),
          static_cast<A>(first ? 1 : 1 - o.dampening),
          static_cast<A>(o.momentum),
          static_cast<A>(o.decoupled_weight_decay ? 1 - lr * o.weight_decay : 1),
          static_cast<A>(lr)};
}

// p and v are updated in place; `v` is not touched without momentum.
template <class A>
__device__ __forceinline__ void update_one(A& p, A grad, A& v, const Coefficients<A>& c, bool has_momentum,
                                           bool nesterov) {
  const A g = grad + c.decay * p;
  A d = g;
  if (has_momentum) {
    v = c.keep * v + c.take * g;
    d = nesterov ? g + c.momentum * v : v;
  }
  p = c.shrink * p - c.lr * d;
}

// Elements [begin, end) of tensor t.
template <class P, class G>
__device__ __forceinline__ void update_chunk(const TensorTable& table, int t, int64_t begin, int64_t end,
                                             const Coefficients<acc_t<P>>& c, const GradTransform<acc_t<P>>& transform,
                                             bool nesterov) {
  using A = acc_t<P>;
  P* param = static_cast<P*>(table.at[t][0]);
  const G* grad = static_cast<const G*>(table.at[t][1]);
  A* buffer = static_cast<A*>(table.at[t][2]);
  uint16_t* half = static_cast<uint16_t*>(table.at[t][4]);
  const bool has_momentum = buffer != nullptr, bfloat16 = table.bfloat16[t];

  constexpr int kWide = 4;
  using PackP = Pack<P, kWide>;
  using PackG = Pack<G, kWide>;
  using PackA = Pack<A, kWide>;
  using PackH = Pack<uint16_t, kWide>;
  const auto fits = [](const void* p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; };
  const bool wide = fits(param, sizeof(PackP)) && fits(grad, sizeof(PackG)) && fits(buffer, sizeof(PackA)) &&
                    fits(half, sizeof(PackH));
  const int64_t tail = wide ? begin + (end - begin) / kWide * kWide : begin;
  for (int64_t i = begin + int64_t{threadIdx.x} * kWide; i < tail; i += int64_t{kBlock} * kWide) {
    PackP p = *reinterpret_cast<PackP*>(param + i);
    const PackG g = *reinterpret_cast<const PackG*>(grad + i);
    PackA v{};
    if (has_momentum) v = *reinterpret_cast<PackA*>(buffer + i);
    PackH h;
#pragma unroll
    for (int k = 0; k < kWide; ++k) {
      A value = load_as(p.v[k]);
      update_one(value, transform(static_cast<A>(load_as(g.v[k]))), v.v[k], c, has_momentum, nesterov);
      p.v[k] = store_as<P>(value);
      h.v[k] = half_bits_of(static_cast<float>(value), bfloat16);
    }
    *reinterpret_cast<PackP*>(param + i) = p;
    if (has_momentum) *reinterpret_cast<PackA*>(buffer + i) = v;
    if (half) *reinterpret_cast<PackH*>(half + i) = h;
  }
  for (int64_t i = tail + threadIdx.x; i < end; i += kBlock) {
    A value = load_as(param[i]), v = has_momentum ? buffer[i] : A(0);
    update_one(value, transform(static_cast<A>(load_as(grad[i]))), v, c, has_momentum, nesterov);
    param[i] = store_as<P>(value);
    if (has_momentum) buffer[i] = v;
    if (half) half[i] = half_bits_of(static_cast<float>(value), bfloat16);
  }
}

template <class P, bool kWhole>
__global__ void __launch_bounds__(kBlock)
    sgd_kernel(const __grid_constant__ TensorTable table, SgdOptions o, const double* rates, int64_t rate_count,
               const int64_t* applied, const StepRecord* record, double clip_value,
               const __grid_constant__ WholeStep whole) {
  using A = acc_t<P>;
  let_next_start();
  wait_for_previous();
  if constexpr (kWhole) {
    meet<P>(table, whole, rates, rate_count, step_view());
    record = whole.record ? &step_view().record : nullptr;
  }
  const double lr = kWhole ? step_view().lr : rate_now(rates, rate_count, applied);
  const GradTransform<A> transform = grad_transform<A>(record, clip_value);
  if (!(record && record->skip)) {  // after the loads, so that they are on their way together
    int tensor = -1;                // that c is of
    Coefficients<A> c{};
    for_chunks_back(table, [&](int t, int64_t begin, int64_t end) {
      if (t != tensor) c = coefficients<A>(o, lr, (kWhole ? step_view().steps[t] : *table.step[t]) == 0), tensor = t;
      with_floating_type(table.grad[t],
                         [&]<class G>() { update_chunk<P, G>(table, t, begin, end, c, transform, o.nesterov); });
    });
  }
  if constexpr (kWhole) settle_together(table, whole, step_view());
}
}  // namespace

void sgd_cuda(const SgdOptions& options, const Rate& rate, std::span<const UpdateItem> items, const GradRule& rule) {
  CudaContext& cuda = Context::of(rate.applied.device()).cuda();
  for_tables(cuda, items, rule, [&]<class P>(const TensorTable& table, unsigned blocks) {
    const auto launch = [&](auto* kernel, unsigned grid, const WholeStep& whole) {
      launch_early(cuda, kernel, grid, kBlock, table, options, rate.values.data<double>(), rate.values.numel(),
                   rate.applied.data<int64_t>(), rule.on_device(), rule.clip_value, whole);
    };
    rule.whole ? launch(sgd_kernel<P, true>, at_once(cuda, sgd_kernel<P, true>, blocks), *rule.whole)
               : launch(sgd_kernel<P, false>, blocks, {});
  });
}

}  // namespace ht::optim
