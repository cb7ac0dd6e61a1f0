// y[i] = g(a[i], b[i], ...) over a contiguous run on the CPU. 16-bit operands pass through small FP32 blocks, so that
// the loop over g is plain FP32 and vectorises, and the conversions use the CPU's own instructions.
#pragma once

#include <algorithm>
#include <type_traits>

#include "core/dtype.h"

namespace ht {

inline constexpr int64_t kRowBlock = 512;
template <class T>
inline constexpr bool converts = !std::is_same_v<T, acc_t<T>>;

// How an operand advances along the run: not read at all, one value for the whole run, or one value an element.
enum class Step : uint8_t { unused, fixed, moves };

template <Step S, class T>
class Operand {
 public:
  explicit Operand(const T* p) : p_(p) {
    if constexpr (S == Step::fixed) value_ = static_cast<acc_t<T>>(*p);
  }
  // Prepares elements [from, from + n) of a 16-bit operand; operator[] then counts from `from`.
  void load(int64_t from, int64_t n) {
    if constexpr (S == Step::moves && converts<T>) to_float(p_ + from, block_, n);
  }
  acc_t<T> operator[](int64_t i) const {
    if constexpr (S == Step::unused) return 0;
    if constexpr (S == Step::fixed) return value_;
    if constexpr (S == Step::moves && converts<T>) return block_[i];
    if constexpr (S == Step::moves && !converts<T>) return p_[i];
  }

 private:
  const T* p_;
  acc_t<T> value_ = 0;
  float block_[S == Step::moves && converts<T> ? kRowBlock : 1];
};

// y must not overlap any operand.
template <class T, class G, class... Operands>
void map_row(T* __restrict y, int64_t n, G g, Operands&&... in) {
  if constexpr (converts<T>) {
    float block[kRowBlock];
    for (int64_t from = 0; from < n; from += kRowBlock) {
      const int64_t m = std::min(kRowBlock, n - from);
      (in.load(from, m), ...);
      for (int64_t i = 0; i < m; ++i) block[i] = g(in[i]...);
      from_float(block, y + from, m);
    }
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = g(in[i]...);
  }
}

}  // namespace ht
