// The formulas of the reductions, shared by CPU and CUDA: y = finish(sum of map(x, mean), n), dx = df(x, stat, dy, n),
// n the elements behind one output. `reads` says what x and stat hold in df. T is float or double.
#pragma once

#include <cmath>

#include "ops/reduce.h"

namespace ht::fn {

struct Sum {
  static constexpr Reads reads = Reads::none;
  template <class T>
  HT_HD T map(T x, T) const {
    return x;
  }
  HT_HD double finish(double sum, double) const { return sum; }
  template <class T>
  HT_HD T df(T, T, T dy, T) const {
    return dy;
  }
};

struct Mean {
  static constexpr Reads reads = Reads::none;
  template <class T>
  HT_HD T map(T x, T) const {
    return x;
  }
  HT_HD double finish(double sum, double n) const { return sum / n; }
  template <class T>
  HT_HD T df(T, T, T dy, T n) const {
    return dy / n;
  }
};

struct Variance {
  static constexpr Reads reads = Reads::x_mean;
  double correction = 1;
  template <class T>
  HT_HD T map(T x, T mean) const {
    return (x - mean) * (x - mean);
  }
  HT_HD double finish(double sum, double n) const { return sum / (n > correction ? n - correction : 0); }
  template <class T>
  HT_HD T df(T x, T mean, T dy, T n) const {
    const T c = static_cast<T>(correction);
    return dy * (T(2) / (n > c ? n - c : T(0))) * (x - mean);
  }
};

struct Norm {
  static constexpr Reads reads = Reads::x_y;
  template <class T>
  HT_HD T map(T x, T) const {
    return x * x;
  }
  HT_HD double finish(double sum, double) const { return std::sqrt(sum); }
  template <class T>
  HT_HD T df(T x, T y, T dy, T) const {
    return y == T(0) ? T(0) : dy * (x / y);
  }
};

}  // namespace ht::fn
