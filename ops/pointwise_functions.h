// The scalar formulas of the pointwise and two-input ops, shared by CPU and CUDA; T is float or double.
//
// One input: y = f(x) and dx = dx(dy, v), where `saves` says whether v is x or y (so that only that one is kept for
// backward) or not read. Masks select in place of multiplying by 0, so that an infinite dy cannot become NaN there.
//
// Two inputs: y = f(a, b), da(dy, a, b) and db(dy, a, b); `da_reads` and `db_reads` say what each gradient reads.
#pragma once

#include <cmath>

#include "core/dtype.h"
#include "ops/float_math.h"

namespace ht::fn {

enum class Saves : uint8_t { none, x, y };

struct Relu {
  static constexpr Saves saves = Saves::y;
  template <class T>
  HT_HD T f(T x) const {
    return x < T(0) ? T(0) : x;  // written so that NaN passes
  }
  template <class T>
  HT_HD T dx(T dy, T y) const {
    return y > T(0) ? dy : T(0);
  }
};

struct Sigmoid {
  static constexpr Saves saves = Saves::y;
  template <class T>
  HT_HD T f(T x) const {
    const T e = fn::exp(-std::abs(x));  // never overflows; the small tail keeps its relative precision
    const T p = T(1) / (T(1) + e);
    return x < T(0) ? e * p : p;
  }
  template <class T>
  HT_HD T dx(T dy, T y) const {
    return dy * (y * (T(1) - y));
  }
};

struct Tanh {
  static constexpr Saves saves = Saves::y;
  template <class T>
  HT_HD T f(T x) const {
    return fn::tanh(x);
  }
  template <class T>
  HT_HD T dx(T dy, T y) const {
    return dy * (T(1) - y * y);
  }
};

// Hendrycks and Gimpel 2016: x Phi(x), derivative Phi(x) + x phi(x). Both products tend to 0 where Phi or phi
// underflows, so they are 0 at an infinite x as well.
struct Gelu {
  static constexpr Saves saves = Saves::x;
  template <class T>
  HT_HD static T times(T x, T p) {
    return p == T(0) ? T(0) : x * p;
  }
  template <class T>
  HT_HD T f(T x) const {
    return times(x, normal(x).cdf);
  }
  template <class T>
  HT_HD T dx(T dy, T x) const {
    const Normal<T> n = normal(x);
    return dy * (n.cdf + times(x, T(0.39894228040143267794) * n.bell));
  }
};

struct Exp {
  static constexpr Saves saves = Saves::y;
  template <class T>
  HT_HD T f(T x) const {
    return fn::exp(x);
  }
  template <class T>
  HT_HD T dx(T dy, T y) const {
    return dy * y;
  }
};

struct Log {
  static constexpr Saves saves = Saves::x;
  template <class T>
  HT_HD T f(T x) const {
    return std::log(x);
  }
  template <class T>
  HT_HD T dx(T dy, T x) const {
    return dy / x;
  }
};

struct Sqrt {
  static constexpr Saves saves = Saves::y;
  template <class T>
  HT_HD T f(T x) const {
    return std::sqrt(x);
  }
  template <class T>
  HT_HD T dx(T dy, T y) const {
    return dy / (T(2) * y);
  }
};

struct Rsqrt {
  static constexpr Saves saves = Saves::y;
  template <class T>
  HT_HD T f(T x) const {
    return T(1) / std::sqrt(x);
  }
  template <class T>
  HT_HD T dx(T dy, T y) const {
    return T(-0.5) * dy * y * y * y;
  }
};

struct Reciprocal {
  static constexpr Saves saves = Saves::y;
  template <class T>
  HT_HD T f(T x) const {
    return T(1) / x;
  }
  template <class T>
  HT_HD T dx(T dy, T y) const {
    return -dy * y * y;
  }
};

struct Neg {
  static constexpr Saves saves = Saves::none;
  template <class T>
  HT_HD T f(T x) const {
    return -x;
  }
  template <class T>
  HT_HD T dx(T dy, T) const {
    return -dy;
  }
};

struct Abs {
  static constexpr Saves saves = Saves::x;
  template <class T>
  HT_HD T f(T x) const {
    return std::abs(x);
  }
  template <class T>
  HT_HD T dx(T dy, T x) const {
    return x > T(0) ? dy : x < T(0) ? -dy : T(0);
  }
};

struct Pow {
  static constexpr Saves saves = Saves::x;
  double exponent = 1;
  template <class T>
  HT_HD T f(T x) const {
    return exponent == 2 ? x * x : std::pow(x, static_cast<T>(exponent));
  }
  template <class T>
  HT_HD T dx(T dy, T x) const {
    if (exponent == 0) return T(0);  // the formula below would give 0 * inf at x = 0
    if (exponent == 2) return dy * (T(2) * x);
    return dy * (static_cast<T>(exponent) * std::pow(x, static_cast<T>(exponent - 1)));
  }
};

struct Scale {
  static constexpr Saves saves = Saves::none;
  double factor = 1;
  template <class T>
  HT_HD T f(T x) const {
    return static_cast<T>(factor) * x;
  }
  template <class T>
  HT_HD T dx(T dy, T) const {
    return static_cast<T>(factor) * dy;
  }
};

struct Clamp {
  static constexpr Saves saves = Saves::x;
  double low = 0, high = 0;
  template <class T>
  HT_HD T f(T x) const {
    const T l = static_cast<T>(low), h = static_cast<T>(high);
    return x < l ? l : x > h ? h : x;  // written so that NaN passes
  }
  template <class T>
  HT_HD T dx(T dy, T x) const {
    return x < static_cast<T>(low) || x > static_cast<T>(high) ? T(0) : dy;
  }
};

// ---- two inputs ----------------------------------------------------------------------------------------------------

enum class Reads : uint8_t {
  nothing,  // the gradient is dy itself, handed on
  dy,       // linear in dy alone: computed after dy is reduced to the operand's shape
  a,        // dy and a
  b,        // dy and b
  both,     // dy, a and b
};
constexpr bool reads_a(Reads r) { return r == Reads::a || r == Reads::both; }
constexpr bool reads_b(Reads r) { return r == Reads::b || r == Reads::both; }

struct Add {
  static constexpr Reads da_reads = Reads::nothing, db_reads = Reads::nothing;
  template <class T>
  HT_HD T f(T a, T b) const {
    return a + b;
  }
  template <class T>
  HT_HD T da(T dy, T, T) const {
    return dy;
  }
  template <class T>
  HT_HD T db(T dy, T, T) const {
    return dy;
  }
};

struct Sub {
  static constexpr Reads da_reads = Reads::nothing, db_reads = Reads::dy;
  template <class T>
  HT_HD T f(T a, T b) const {
    return a - b;
  }
  template <class T>
  HT_HD T da(T dy, T, T) const {
    return dy;
  }
  template <class T>
  HT_HD T db(T dy, T, T) const {
    return -dy;
  }
};

struct Mul {
  static constexpr Reads da_reads = Reads::b, db_reads = Reads::a;
  template <class T>
  HT_HD T f(T a, T b) const {
    return a * b;
  }
  template <class T>
  HT_HD T da(T dy, T, T b) const {
    return dy * b;
  }
  template <class T>
  HT_HD T db(T dy, T a, T) const {
    return dy * a;
  }
};

struct Div {
  static constexpr Reads da_reads = Reads::b, db_reads = Reads::both;
  template <class T>
  HT_HD T f(T a, T b) const {
    return a / b;
  }
  template <class T>
  HT_HD T da(T dy, T, T b) const {
    return dy / b;
  }
  template <class T>
  HT_HD T db(T dy, T a, T b) const {
    return -(dy / b) * (a / b);  // b * b could overflow
  }
};

}  // namespace ht::fn
