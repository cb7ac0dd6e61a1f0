// The scalar formulas of the pointwise ops, shared by CPU and CUDA: y = f(x) and dy/dx = df(x, y). `saves` says which
// of x and y df reads, so that only that one is kept for backward. T is float or double.
#pragma once

#include <cmath>

#include "core/dtype.h"

namespace ht::fn {

enum class Saves : uint8_t { none, x, y };

struct Relu {
  static constexpr Saves saves = Saves::y;
  template <class T>
  HT_HD T f(T x) const {
    return x < T(0) ? T(0) : x;
  }  // written so that NaN passes
  template <class T>
  HT_HD T df(T, T y) const {
    return y > T(0) ? T(1) : T(0);
  }
};

}  // namespace ht::fn
