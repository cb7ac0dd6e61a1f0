// What a step does around the update, all on the device: judge the gradients before it, count and settle after it.
#include "optim/early_check.h"
#include "optim/multi_tensor.cuh"

namespace ht::optim {

namespace {
// Adds the block's values in a fixed order; the sum is thread 0's.
__device__ double block_sum(double value) {
  __shared__ double shared[kBlock];
  shared[threadIdx.x] = value;
  for (int half = kBlock / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) shared[threadIdx.x] += shared[threadIdx.x + half];
  }
  return shared[0];
}

void add_gradient(TensorTable& table, const Tensor& grad, int index) {
  table.index[table.count] = index;
  table.grad[table.count] = grad.dtype();
  table.add({grad.data()}, grad.numel());
}

// Are all gradients finite? Their squares, a sum a block, go to `partial` unless that is null.
__global__ void __launch_bounds__(kBlock)
    inspect_kernel(const __grid_constant__ TensorTable table, int32_t* first_bad, double* partial) {
  let_next_start();
  double squares = 0;
  for_chunks(table, [&](int t, int64_t begin, int64_t end) {
    bool bad = false;
    for_gradient<0>(table, t, begin, end, [&](auto g) {
      bad |= !finite_bits(g);
      if (!partial) return;
      const double value = static_cast<double>(load_as(g));
      squares += value * value;
    });
    if (bad) atomicMax(first_bad, table.index[t]);
  });
  if (!partial) return;
  const double sum = block_sum(squares);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// A loss that has not been looked at: all that a backward would have told the scaler.
struct LateLoss {
  const void* value;  // or null
  DType dtype;
  bool first;
};

__global__ void __launch_bounds__(kBlock)
    judge_kernel(StepRecord* record, ScalerState* states, int count, bool scaled, LateLoss loss, const double* partial,
                 int64_t partials, double max_norm, int32_t* first_bad) {
  let_next_start();
  wait_for_previous();
  double sum = 0;
  for (int64_t i = threadIdx.x; i < partials; i += kBlock) sum += partial[i];
  sum = block_sum(sum);
  if (threadIdx.x != 0) return;
  if (loss.value)
    with_floating_type(loss.dtype, [&]<class T>() {
      begin_backward(states, count, 0, loss.first, finite_bits(*static_cast<const T*>(loss.value)));
    });
  if (first_bad) record->first_bad = max(record->first_bad, *first_bad), *first_bad = -1;
  record->bad_gradient = record->first_bad >= 0;
  judge(*record, states, count, scaled, sum, max_norm);
}

struct FinishTable {
  static constexpr int kCounters = 200, kBuffers = 70;
  int64_t* counter[kCounters];
  struct {
    char *value, *snapshot;
    int64_t bytes;
  } buffer[kBuffers];
  int counters = 0, buffers = 0;
};

struct Scales {
  ScalerState* states;
  float* seed;
  int count;
  bool scaled, last;  // last: of this step's launches
  uint64_t moving;
  ScalerOptions options;
};
static_assert(sizeof(FinishTable) + sizeof(Scales) < 4000);

// Block 0 counts and, in the step's last launch, settles the record; the others take a buffer each. Nothing here writes
// record->skip, so all blocks of all launches see the same verdict.
__global__ void __launch_bounds__(kBlock) finish_kernel(const __grid_constant__ FinishTable table, StepRecord* record,
                                                        const __grid_constant__ Scales scales) {
  let_next_start();
  wait_for_previous();
  const bool skip = record && record->skip;
  if (blockIdx.x == 0) {
    for (int i = static_cast<int>(threadIdx.x); !skip && i < table.counters; i += kBlock) ++*table.counter[i];
    if (threadIdx.x == 0 && scales.last && record) {
      settle(*record, scales.states, scales.count, scales.scaled, scales.moving, scales.options);
      if (scales.seed) *scales.seed = scales.states->scale;
    }
    return;
  }
  const auto& b = table.buffer[blockIdx.x - 1];
  const char* from = skip ? b.snapshot : b.value;
  char* to = skip ? b.value : b.snapshot;
  const bool wide = (reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) % 16 == 0;
  const int64_t words = wide ? b.bytes / 16 : 0;
  constexpr int kAtOnce = 4;
  for (int64_t i = threadIdx.x; i < words; i += kAtOnce * kBlock) {
    int4 word[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u)
      if (i + u * kBlock < words) word[u] = reinterpret_cast<const int4*>(from)[i + u * kBlock];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u)
      if (i + u * kBlock < words) reinterpret_cast<int4*>(to)[i + u * kBlock] = word[u];
  }
  for (int64_t i = words * 16 + threadIdx.x; i < b.bytes; i += kBlock) to[i] = from[i];
}
}  // namespace

void judge_gradients_cuda(std::span<const UpdateItem> items, const Tensor& record, Tensor& partials,
                          const Scaling& scaling, double max_norm, const Tensor& first_bad) {
  CudaContext& cuda = Context::of(record.device()).cuda();
  auto* r = reinterpret_cast<StepRecord*>(record.data<uint8_t>());
  const bool norm = !std::isinf(max_norm);
  // At most one table of each dtype is not full.
  const int64_t most = norm ? (static_cast<int64_t>(items.size()) / kTableSize + 4) * cuda.sm_count * 4 : 0;
  if (norm && (!partials || partials.numel() < most)) partials = Tensor::empty({most}, DType::f64, record.device());
  double* partial = norm ? partials.data<double>() : nullptr;
  int64_t used = 0;
  if (scaling.count > 0 || norm)
    for_tables_of(
        cuda, items,
        [](TensorTable& table, const UpdateItem& item) {
          add_gradient(table, item.grad, item.index);
          return true;
        },
        [&](const TensorTable& table) {
          const unsigned blocks = table.blocks(cuda);
          inspect_kernel<<<blocks, kBlock, 0, cuda.stream()>>>(table, &r->first_bad, norm ? partial + used : nullptr);
          HT_LAUNCHED("inspect gradients");
          if (norm) used += blocks;
        });
  launch_early(cuda, judge_kernel, 1, kBlock, r, scaling.on_device(), scaling.count, scaling.scaled,
               LateLoss{scaling.loss.data(), scaling.loss.dtype(), scaling.first}, partial, used, max_norm,
               first_bad ? first_bad.data<int32_t>() : nullptr);
}

void check_early_cuda(const Tensor& grad, int index, const Tensor& first_bad) {
  CudaContext& cuda = Context::of(grad.device()).cuda();
  TensorTable table;
  table.chunk = chunk_for(cuda, grad.numel());
  add_gradient(table, grad, index);
  const unsigned blocks = std::min(table.blocks(cuda), static_cast<unsigned>(cuda.sm_count));  // room for others
  cuda.beside({grad}, [&](CudaLane& lane) {
    inspect_kernel<<<blocks, kBlock, 0, lane.stream>>>(table, first_bad.data<int32_t>(), nullptr);
    HT_LAUNCHED("check a gradient");
  });
}

void finish_step_cuda(std::span<const UpdateItem> items, const Tensor& applied, const Tensor& record,
                      std::span<const BufferGuard::Entry> buffers, const Scaling& s) {
  CudaContext& cuda = Context::of(applied.device()).cuda();
  auto* r = record ? reinterpret_cast<StepRecord*>(record.data<uint8_t>()) : nullptr;
  Scales scales{s.on_device(), s.seed ? s.seed.data<float>() : nullptr, s.count, s.scaled, false, s.moving, s.options};
  FinishTable table;
  const auto launch = [&](bool last) {
    scales.last = last;
    launch_early(cuda, finish_kernel, static_cast<unsigned>(table.buffers) + 1, kBlock, table, r, scales);
    table.counters = table.buffers = 0;
  };
  const auto count = [&](int64_t* counter) {
    if (table.counters == FinishTable::kCounters) launch(false);
    table.counter[table.counters++] = counter;
  };
  count(applied.data<int64_t>());
  for (const UpdateItem& item : items) count(item.step.data<int64_t>());
  for (const BufferGuard::Entry& e : buffers) {
    if (table.buffers == FinishTable::kBuffers) launch(false);
    table.buffer[table.buffers++] = {static_cast<char*>(e.value.data()), static_cast<char*>(e.snapshot.data()),
                                     static_cast<int64_t>(e.value.bytes())};
  }
  launch(true);
}

}  // namespace ht::optim
