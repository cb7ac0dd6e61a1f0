// The loss scaler's kernels beside the step: the seed of a backward, and gradients unscaled at once.
#include "optim/multi_tensor.cuh"

namespace ht::optim {

namespace {
template <class T>
__global__ void begin_kernel(ScalerState* states, int count, int id, bool first, const T* loss, float* seed) {
  let_next_start();
  wait_for_previous();
  const float scale = begin_backward(states, count, id, first, finite_bits(*loss));
  if (seed) *seed = scale;
}

// sum += grad / scale, with a note where a gradient is not finite.
template <class G>
__global__ void __launch_bounds__(kBlock)
    unscale_kernel(const __grid_constant__ TensorTable table, ScalerState* state) {
  using A = acc_t<G>;
  const double factor = 1.0 / static_cast<double>(state->scale);
  for_chunks(table, [&](int t, int64_t begin, int64_t end) {
    const G* grad = static_cast<const G*>(table.at[t][0]);
    A* sum = static_cast<A*>(table.at[t][1]);
    bool bad = false;
    for (int64_t i = begin + threadIdx.x; i < end; i += kBlock) {
      const G g = grad[i];
      bad |= !finite_bits(g);
      sum[i] += static_cast<A>(load_as(g)) * static_cast<A>(factor);
    }
    if (bad) {
      state->bad_gradient = 1;
      atomicMax(&state->first_bad, table.index[t]);
    }
  });
}
}  // namespace

void begin_backward_cuda(const Tensor& states, int count, int id, bool first, const Tensor& loss, const Tensor& seed) {
  CudaContext& cuda = Context::of(states.device()).cuda();
  dispatch_floating(loss.dtype(), "amp.backward", [&]<class T>() {
    launch_early(cuda, begin_kernel<T>, 1, 1, reinterpret_cast<ScalerState*>(states.data<uint8_t>()), count, id, first,
                 loss.data<T>(), seed ? seed.data<float>() : nullptr);
  });
}

void unscale_cuda(const Tensor& states, int id, std::span<const Tensor> grads, std::span<const Tensor> sums,
                  std::span<const int> indices) {
  CudaContext& cuda = Context::of(states.device()).cuda();
  ScalerState* state = reinterpret_cast<ScalerState*>(states.data<uint8_t>()) + id;
  for_floating([&]<class G>() {
    for_tables_of(
        cuda, grads,
        [&](TensorTable& table, const Tensor& grad) {
          if (grad.dtype() != dtype_of<G>()) return false;
          const size_t i = static_cast<size_t>(&grad - grads.data());
          table.index[table.count] = indices[i];
          table.add({grad.data(), sums[i].data()}, grad.numel());
          return true;
        },
        [&](const TensorTable& table) {
          unscale_kernel<G><<<table.blocks(cuda), kBlock, 0, cuda.stream()>>>(table, state);
          HT_LAUNCHED("unscale gradients");
        });
  });
  for (const Tensor& sum : sums) sum.bump_version();
}

}  // namespace ht::optim
