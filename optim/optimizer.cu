#include "optim/multi_tensor.cuh"

namespace ht::optim {

namespace {
struct Counters {
  static constexpr int kMost = 256;
  int64_t* at[kMost];
  int count = 0;
};

__global__ void count_kernel(const __grid_constant__ Counters counters) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < counters.count) ++*counters.at[i];
}

void count(CudaContext& cuda, Counters& counters) {
  if (counters.count == 0) return;
  count_kernel<<<1, Counters::kMost, 0, cuda.stream()>>>(counters);
  HT_LAUNCHED("count");
  counters.count = 0;
}
}  // namespace

void count_updates_cuda(CudaContext& cuda, std::span<const UpdateItem> items) {
  Counters counters;
  for (const UpdateItem& item : items) {
    counters.at[counters.count++] = item.step.data<int64_t>();
    if (counters.count == Counters::kMost) count(cuda, counters);
  }
  count(cuda, counters);
}

void count_step_cuda(const Tensor& applied) {
  Counters counters;
  counters.at[counters.count++] = applied.data<int64_t>();
  count(Context::of(applied.device()).cuda(), counters);
}

}  // namespace ht::optim
