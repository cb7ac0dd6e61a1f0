#include "core/arithmetic.h"

#include "core/build.h"
#include "core/parallel.h"

namespace ht {

void add_into(const Tensor& to, const Tensor& from) {
  check(to.shape() == from.shape() && to.device() == from.device(), "add_into: tensors do not fit (", Named{"to", to},
        ", ", Named{"from", from}, ")");
  if (to.device().is_cuda()) {
    if constexpr (kCudaBuild) add_into_cuda(to, from);
  } else if (to.dtype() == DType::i64 && from.dtype() == DType::i64) {
    for (int64_t i = 0; i < to.numel(); ++i) to.data<int64_t>()[i] += from.data<int64_t>()[i];
  } else {
    dispatch_floating(to.dtype(), "add_into", [&]<class T>() {
      dispatch_floating(from.dtype(), "add_into", [&]<class F>() {
        T* out = to.data<T>();
        const F* in = from.data<F>();
        parallel_for(to.numel(), 1 << 14, [=](int64_t begin, int64_t end) {
          using A = acc_t<T>;
          for (int64_t i = begin; i < end; ++i)
            out[i] = static_cast<T>(static_cast<A>(out[i]) + static_cast<A>(static_cast<acc_t<F>>(in[i])));
        });
      });
    });
  }
  to.bump_version();
}

}  // namespace ht
