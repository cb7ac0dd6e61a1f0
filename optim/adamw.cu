// The update of optim/adamw.cpp on CUDA.
#include "optim/adamw.h"
#include "optim/whole_step.cuh"

namespace ht::optim {

namespace {
template <class P, bool kWhole>
__global__ void __launch_bounds__(kBlock)
    adamw_kernel(const __grid_constant__ TensorTable table, AdamWOptions o, const double* rates, int64_t rate_count,
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
  const auto update_chunk = [&](int t, int64_t begin, int64_t end) {
    P* param = static_cast<P*>(table.at[t][0]);
    A* m = static_cast<A*>(table.at[t][2]);
    A* s = static_cast<A*>(table.at[t][3]);
    uint16_t* half = static_cast<uint16_t*>(table.at[t][4]);
    const double updates = static_cast<double>((kWhole ? step_view().steps[t] : *table.step[t]) + 1);
    const A beta1 = static_cast<A>(o.beta1), take1 = static_cast<A>(1 - o.beta1);
    const A beta2 = static_cast<A>(o.beta2), take2 = static_cast<A>(1 - o.beta2);
    const A root2 = static_cast<A>(sqrt(1 - pow(o.beta2, updates))), eps = static_cast<A>(o.eps);
    const A shrink = static_cast<A>(1 - lr * o.weight_decay);
    const A step_size = static_cast<A>(lr / (1 - pow(o.beta1, updates)));
    const auto update = [&](int64_t i, A grad) {
      const A g = transform(grad);
      const A m_new = beta1 * m[i] + take1 * g, s_new = beta2 * s[i] + take2 * g * g;
      m[i] = m_new;
      s[i] = s_new;
      const A p = shrink * load_as(param[i]) - step_size * (m_new / (sqrt(s_new) / root2 + eps));
      param[i] = store_as<P>(p);
      if (half) half[i] = half_bits_of(static_cast<float>(p), table.bfloat16[t]);
    };
    with_floating_type(table.grad[t], [&]<class G>() {
      const G* grad = static_cast<const G*>(table.at[t][1]);
      for (int64_t i = begin + threadIdx.x; i < end; i += kBlock) update(i, static_cast<A>(load_as(grad[i])));
    });
  };
  if (!(record && record->skip)) for_chunks_back(table, update_chunk);
  if constexpr (kWhole) settle_together(table, whole, step_view());
}
}  // namespace

void adamw_cuda(const AdamWOptions& options, const Rate& rate, std::span<const UpdateItem> items,
                const GradRule& rule) {
  CudaContext& cuda = Context::of(rate.applied.device()).cuda();
  for_tables(cuda, items, rule, [&]<class P>(const TensorTable& table, unsigned blocks) {
    const auto launch = [&](auto* kernel, unsigned grid, const WholeStep& whole) {
      launch_early(cuda, kernel, grid, kBlock, table, options, rate.values.data<double>(), rate.values.numel(),
                   rate.applied.data<int64_t>(), rule.on_device(), rule.clip_value, whole);
    };
    rule.whole ? launch(adamw_kernel<P, true>, at_once(cuda, adamw_kernel<P, true>, blocks), *rule.whole)
               : launch(adamw_kernel<P, false>, blocks, {});
  });
}

}  // namespace ht::optim
