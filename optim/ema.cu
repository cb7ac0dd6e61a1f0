#include "optim/ema.h"
#include "optim/multi_tensor.cuh"

namespace ht::optim {

namespace {
// P: the source's dtype; the average is in its accumulation type.
template <class P>
__global__ void __launch_bounds__(kBlock) ema_kernel(const __grid_constant__ TensorTable table, EmaOptions options,
                                                     const int64_t* applied, const StepRecord* record) {
  if (record && record->skip) return;
  using A = acc_t<P>;
  constexpr int kWide = Pack<A>::size;
  using PackA = Pack<A>;
  using PackP = Pack<P, kWide>;
  const A rate = static_cast<A>(ema_rate(options, *applied));
  for_chunks(table, [&](int t, int64_t begin, int64_t end) {
    A* average = static_cast<A*>(table.at[t][0]);
    const P* source = static_cast<const P*>(table.at[t][1]);
    const bool wide = (reinterpret_cast<uintptr_t>(average) | reinterpret_cast<uintptr_t>(source)) % 16 == 0;
    const int64_t tail = wide ? begin + (end - begin) / kWide * kWide : begin;
    for (int64_t i = begin + int64_t{threadIdx.x} * kWide; i < tail; i += int64_t{kBlock} * kWide) {
      PackA a = *reinterpret_cast<const PackA*>(average + i);
      const PackP s = *reinterpret_cast<const PackP*>(source + i);
#pragma unroll
      for (int k = 0; k < kWide; ++k) a.v[k] += rate * (static_cast<A>(load_as(s.v[k])) - a.v[k]);
      *reinterpret_cast<PackA*>(average + i) = a;
    }
    for (int64_t i = tail + threadIdx.x; i < end; i += kBlock)
      average[i] += rate * (static_cast<A>(load_as(source[i])) - average[i]);
  });
}
}  // namespace

void ema_cuda(const EmaOptions& options, std::span<const EmaItem> items, const Tensor& applied,
              const StepRecord* record) {
  CudaContext& cuda = Context::of(applied.device()).cuda();
  for_floating([&]<class P>() {
    for_tables_of(
        cuda, items,
        [](TensorTable& table, const EmaItem& item) {
          if (item.source.dtype() != dtype_of<P>()) return false;
          table.add({item.average.data(), item.source.data()}, item.source.numel());
          return true;
        },
        [&](const TensorTable& table) {
          ema_kernel<P>
              <<<table.blocks(cuda), kBlock, 0, cuda.stream()>>>(table, options, applied.data<int64_t>(), record);
          HT_LAUNCHED("ema");
        });
  });
}

}  // namespace ht::optim
