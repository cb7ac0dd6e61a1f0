// One kernel over many tensors: their pointers travel in the kernel's parameters, and each block takes chunks of them.
#pragma once

#include <span>
#include <vector>

#include "core/cuda_kernels.cuh"
#include "optim/optimizer.h"

namespace ht::optim {

inline constexpr int kBlocksPerSm = 4;
inline constexpr int kPointers = 5;  // parameter, gradient, two buffers, half copy

// Elements that a block takes at a time: few enough that small tensors, too, keep the whole device busy.
inline int64_t chunk_for(const CudaContext& cuda, int64_t elements, int chunks_per_sm = 2 * kBlocksPerSm) {
  constexpr int64_t kLeast = 4 * kBlock, kMost = 1 << 14;
  const int64_t chunks = int64_t{cuda.sm_count} * chunks_per_sm;
  return std::clamp((elements + chunks * kLeast - 1) / (chunks * kLeast) * kLeast, kLeast, kMost);
}

// Tensor i has `n[i]` elements; chunks [first[i], first[i + 1]), of `chunk` elements but for the last, are its own.
struct TensorTable {
  void* at[kTableSize][kPointers];
  int64_t* step[kTableSize];
  int64_t n[kTableSize];
  int first[kTableSize + 1];
  int index[kTableSize];      // of the parameter
  DType grad[kTableSize];     // the gradient's dtype
  bool bfloat16[kTableSize];  // the half copy's
  int64_t chunk = 0;
  int count = 0;

  bool full() const { return count == kTableSize; }
  void add(std::initializer_list<void*> pointers, int64_t numel) {
    if (count == 0) first[0] = 0;
    std::copy(pointers.begin(), pointers.end(), at[count]);
    n[count] = numel;
    first[count + 1] = first[count] + static_cast<int>((numel + chunk - 1) / chunk);
    ++count;
  }
  int chunks() const { return count ? first[count] : 0; }
  unsigned blocks(const CudaContext& cuda) const {
    return static_cast<unsigned>(std::min(chunks(), cuda.sm_count * kBlocksPerSm));
  }
};
static_assert(sizeof(TensorTable) <= 3900);

// Calls f(tensor, begin, end) for every chunk of this block.
template <class F>
__device__ void for_chunks(const TensorTable& table, F&& f) {
  int tensor = 0;
  for (int chunk = static_cast<int>(blockIdx.x); chunk < table.first[table.count];
       chunk += static_cast<int>(gridDim.x)) {
    while (chunk >= table.first[tensor + 1]) ++tensor;
    const int64_t begin = int64_t{chunk - table.first[tensor]} * table.chunk;
    f(tensor, begin, min(begin + table.chunk, table.n[tensor]));
  }
}

// The same from the last chunk to the first: what a pass before this one read last is still in the L2 cache.
template <class F>
__device__ void for_chunks_back(const TensorTable& table, F&& f) {
  int tensor = table.count - 1;
  for (int chunk = table.first[table.count] - 1 - static_cast<int>(blockIdx.x); chunk >= 0;
       chunk -= static_cast<int>(gridDim.x)) {
    while (chunk < table.first[tensor]) --tensor;
    const int64_t begin = int64_t{chunk - table.first[tensor]} * table.chunk;
    f(tensor, begin, min(begin + table.chunk, table.n[tensor]));
  }
}

__device__ inline double rate_now(const double* values, int64_t n, const int64_t* applied) {
  return values[n == 1 ? 0 : min(*applied, n - 1)];  // a fixed rate need not wait for the count
}

// A value's half, as bits, in the table's dtype for that tensor.
__device__ __forceinline__ uint16_t half_bits_of(float v, bool bfloat16) {
  return bfloat16 ? store_as<BFloat16>(v).bits : store_as<Half>(v).bits;
}

// Calls launch(table) for each full or last table of the items that `add(table, item)` puts in; add says if it did.
template <class Item, class Add, class Launch>
void for_tables_of(const CudaContext& cuda, std::span<const Item> items, Add&& add, Launch&& launch,
                   int chunks_per_sm = 2 * kBlocksPerSm) {
  int64_t elements = 0;
  for (const Item& item : items) elements += item.numel();
  TensorTable table;
  table.chunk = chunk_for(cuda, elements, chunks_per_sm);
  for (const Item& item : items) {
    if (add(table, item) && table.full()) {
      launch(table);
      table.count = 0;
    }
  }
  if (table.chunks() > 0) launch(table);
}

// Calls f.operator()<T>() for every floating storage type.
template <class F>
void for_floating(F&& f) {
  f.template operator()<float>();
  f.template operator()<Half>();
  f.template operator()<BFloat16>();
  f.template operator()<double>();
}

// Calls f.operator()<T>() on the device for a floating dtype, which is the same for all threads of a block.
template <class F>
__device__ __forceinline__ void with_floating_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32:
      return f.template operator()<float>();
    case DType::f16:
      return f.template operator()<Half>();
    case DType::bf16:
      return f.template operator()<BFloat16>();
    default:
      return f.template operator()<double>();
  }
}

// Calls look(g) for the elements [begin, end) of the gradient at [t][kAt].
template <int kAt, class Look>
__device__ __forceinline__ void for_gradient(const TensorTable& table, int t, int64_t begin, int64_t end, Look&& look) {
  with_floating_type(table.grad[t], [&]<class G>() {
    const G* grad = static_cast<const G*>(table.at[t][kAt]);
    constexpr int kWide = Pack<G>::size;
    const int64_t tail = reinterpret_cast<uintptr_t>(grad) % 16 == 0 ? begin + (end - begin) / kWide * kWide : begin;
    constexpr int64_t kStep = int64_t{kBlock} * kWide;
    const auto look_at = [&]<int kCount>(int64_t i) {  // packs, whose loads all go out before the first look
      Pack<G> g[kCount];
#pragma unroll
      for (int u = 0; u < kCount; ++u) g[u] = *reinterpret_cast<const Pack<G>*>(grad + i + u * kStep);
#pragma unroll
      for (int u = 0; u < kCount; ++u)
#pragma unroll
        for (int k = 0; k < kWide; ++k) look(g[u].v[k]);
    };
    int64_t i = begin + int64_t{threadIdx.x} * kWide;
    for (; i + 3 * kStep < tail; i += 4 * kStep) look_at.template operator()<4>(i);
    for (; i < tail; i += kStep) look_at.template operator()<1>(i);
    for (i = tail + threadIdx.x; i < end; i += kBlock) look(grad[i]);
  });
}

// Sorts the items by the parameter's dtype, fills tables with parameter, gradient, buffers and half copy, and calls
// launch.operator()<P>(table, blocks) for each full or last one.
template <class Launch>
void for_tables(const CudaContext& cuda, std::span<const UpdateItem> items, const GradRule& rule, Launch&& launch) {
  for_floating([&]<class P>() {
    for_tables_of(
        cuda, items,
        [](TensorTable& table, const UpdateItem& item) {
          if (item.param.dtype() != dtype_of<P>()) return false;
          table.step[table.count] = item.step.data<int64_t>();
          table.index[table.count] = item.index;
          table.grad[table.count] = item.grad.dtype();
          table.bfloat16[table.count] = item.half.dtype() == DType::bf16;
          table.add({item.param.data(), item.grad.data(), item.buffers.size() > 0 ? item.buffers[0].data() : nullptr,
                     item.buffers.size() > 1 ? item.buffers[1].data() : nullptr, item.half.data()},
                    item.param.numel());
          return true;
        },
        [&](const TensorTable& table) { launch.template operator()<P>(table, table.blocks(cuda)); },
        rule.whole ? kBlocksPerSm : 2 * kBlocksPerSm);  // a chunk for each block of a step in one launch
  });
}

}  // namespace ht::optim
