// One kernel over many tensors: their pointers travel in the kernel's parameters, and each block takes chunks of them.
#pragma once

#include <span>
#include <vector>

#include "core/cuda_kernels.cuh"
#include "optim/optimizer.h"

namespace ht::optim {

inline constexpr int kTableSize = 48;       // tensors a launch; the table must fit 4 KiB of kernel parameters
inline constexpr int64_t kChunk = 1 << 14;  // elements a block takes at a time
inline constexpr int kPointers = 4;

// Tensor i has `n[i]` elements; chunks [first[i], first[i + 1]) are its own.
struct TensorTable {
  void* at[kTableSize][kPointers];
  const int64_t* step[kTableSize];
  int64_t n[kTableSize];
  int first[kTableSize + 1];
  int count = 0;

  bool full() const { return count == kTableSize; }
  void add(std::initializer_list<void*> pointers, const int64_t* steps, int64_t numel) {
    if (count == 0) first[0] = 0;
    std::copy(pointers.begin(), pointers.end(), at[count]);
    step[count] = steps;
    n[count] = numel;
    first[count + 1] = first[count] + static_cast<int>((numel + kChunk - 1) / kChunk);
    ++count;
  }
  int chunks() const { return count ? first[count] : 0; }
};
static_assert(sizeof(TensorTable) <= 4000);

// Calls f(tensor, begin, end) for every chunk of this block.
template <class F>
__device__ void for_chunks(const TensorTable& table, F&& f) {
  int tensor = 0;
  for (int chunk = static_cast<int>(blockIdx.x); chunk < table.first[table.count];
       chunk += static_cast<int>(gridDim.x)) {
    while (chunk >= table.first[tensor + 1]) ++tensor;
    const int64_t begin = int64_t{chunk - table.first[tensor]} * kChunk;
    f(tensor, begin, min(begin + kChunk, table.n[tensor]));
  }
}

__device__ inline double rate_now(const double* values, int64_t n, const int64_t* applied) {
  return values[min(*applied, n - 1)];
}

// Sorts the items by the dtypes of parameter and gradient, fills tables with parameter, gradient and buffers, and calls
// launch.operator()<P, G>(table, blocks) for each full or last one.
template <class Launch>
void for_tables(const CudaContext& cuda, std::span<const UpdateItem> items, Launch&& launch) {
  const auto flush = [&]<class P, class G>(TensorTable& table) {
    if (table.chunks() > 0)
      launch.template operator()<P, G>(table, static_cast<unsigned>(std::min(table.chunks(), cuda.sm_count * 4)));
    table.count = 0;
  };
  const auto take = [&]<class P, class G>() {
    TensorTable table;
    for (const UpdateItem& item : items) {
      if (item.param.dtype() != dtype_of<P>() || item.grad.dtype() != dtype_of<G>()) continue;
      table.add({item.param.data(), item.grad.data(), item.buffers.size() > 0 ? item.buffers[0].data() : nullptr,
                 item.buffers.size() > 1 ? item.buffers[1].data() : nullptr},
                item.step.data<int64_t>(), item.param.numel());
      if (table.full()) flush.template operator()<P, G>(table);
    }
    flush.template operator()<P, G>(table);
  };
  const auto with_param = [&]<class P>() {
    take.template operator()<P, float>();
    take.template operator()<P, Half>();
    take.template operator()<P, BFloat16>();
    take.template operator()<P, double>();
  };
  with_param.template operator()<float>();
  with_param.template operator()<Half>();
  with_param.template operator()<BFloat16>();
  with_param.template operator()<double>();
}

// Adds 1 to every item's own counter, after all kernels that read it.
void count_updates_cuda(CudaContext& cuda, std::span<const UpdateItem> items);

}  // namespace ht::optim
