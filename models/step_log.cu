#include "models/step_log.h"
#include "optim/multi_tensor.cuh"

namespace ht::models {

namespace {
constexpr int kThreads = 1024;  // of the only block: a batch is small

template <class T>
__global__ void __launch_bounds__(kThreads)
    record_kernel(StepRing* ring, const void* loss, DType loss_dtype, const T* logits, const void* labels, bool wide,
                  int64_t n, int64_t classes, const double* rates, int64_t rate_count, const int64_t* applied) {
  let_next_start();
  __shared__ int correct;
  if (threadIdx.x == 0) correct = 0;
  wait_for_previous();
  __syncthreads();
  int mine = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    const int64_t label = wide ? static_cast<const int64_t*>(labels)[i] : static_cast<const int32_t*>(labels)[i];
    mine += is_correct(logits + i * classes, classes, label);
  }
  if (mine) atomicAdd(&correct, mine);
  __syncthreads();
  if (threadIdx.x > 0) return;
  StepEntry entry{0, rates ? optim::rate_now(rates, rate_count, applied) : 0, correct, n};
  optim::with_floating_type(loss_dtype, [&]<class L>() { entry.loss = load_as(*static_cast<const L*>(loss)); });
  ring->slots[ring->count++ % StepLog::kSlots] = entry;
}
}  // namespace

void record_step_cuda(const Tensor& ring, const Tensor& loss, const Tensor& logits, const Tensor& labels,
                      const optim::Rate& rate) {
  CudaContext& cuda = Context::of(ring.device()).cuda();
  dispatch_floating(logits.dtype(), "step log", [&]<class T>() {
    launch_early(cuda, record_kernel<T>, 1, kThreads, reinterpret_cast<StepRing*>(ring.data<uint8_t>()), loss.data(),
                 loss.dtype(), logits.data<T>(), labels.data(), labels.dtype() == DType::i64, logits.dim(0),
                 logits.dim(1), rate.values ? rate.values.data<double>() : nullptr,
                 rate.values ? rate.values.numel() : 0, rate.values ? rate.applied.data<int64_t>() : nullptr);
  });
}

}  // namespace ht::models
