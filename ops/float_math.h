// e^x, tanh and the normal distribution for the loops over floats on the CPU: no calls and no branches, so that the
// compiler vectorises them, and as exact as a float allows (tests/test_float_math.cpp). In double and on CUDA they are
// the standard library's.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "core/dtype.h"

namespace ht::fn {

namespace detail {
// Whether T is computed here.
#if defined(__CUDA_ARCH__)
template <class T>
inline constexpr bool here = false;
#else
template <class T>
inline constexpr bool here = std::is_same_v<T, float>;
#endif

// first + t (second + t (...)).
template <class... Rest>
HT_HD float polynomial(float t, float first, Rest... rest) {
  if constexpr (sizeof...(rest) == 0) {
    return first;
  } else {
    return first + t * polynomial(t, rest...);
  }
}

// e^(x + low) = (1 + p) * scale * more, the last two powers of 2 (one alone could not reach all of float's range).
struct Exponential {
  float p, scale, more;
};

// x + low = n log 2 + r with |r| <= 0.35, and e^r by its series. `low` is small beside x: what x could not hold.
HT_HD inline Exponential exponential(float x, float low = 0) {
  low = x < -104.0f ? 0.0f : low;                     // NaN where x is infinite
  x = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;  // beyond: 0 and infinity; written so that NaN passes
  constexpr float kRound = 0x1.8p23f;                 // adding it leaves an integer in the lowest bits
  const float shifted = x * 1.44269504f + kRound, n = shifted - kRound;
  const float r = ((x - n * 0.693359375f) + n * 2.12194440e-4f) + low;  // log 2 in two parts, the first product exact
  const float series = polynomial(r, 1.0f / 2, 1.0f / 6, 1.0f / 24, 1.0f / 120, 1.0f / 720, 1.0f / 5040);
  const auto power = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound), half = power >> 1;
  const auto two_to = [](int32_t k) { return std::bit_cast<float>(static_cast<uint32_t>(k + 127) << 23); };
  return {r + r * r * series, two_to(half), two_to(power - half)};
}
}  // namespace detail

template <class T>
HT_HD inline T exp(T x) {
  if constexpr (detail::here<T>) {
    const detail::Exponential e = detail::exponential(x);
    return (1.0f + e.p) * e.scale * e.more;
  } else {
    return std::exp(x);
  }
}

// With m = e^(-2|x|) - 1, which is exact to the last bits near 0 as well: -m / (m + 2).
template <class T>
HT_HD inline T tanh(T x) {
  if constexpr (detail::here<T>) {
    const detail::Exponential e = detail::exponential(-2.0f * std::abs(x));
    const float s = e.scale * e.more, m = e.p * s + (s - 1.0f);
    return std::copysign(m / (m + 2.0f), x);
  } else {
    return std::tanh(x);
  }
}

template <class T>
struct Normal {
  T bell, cdf;  // e^(-x^2 / 2), and the probability of values below x
};

// The tail keeps its relative precision: bell times a polynomial in t = 1 / (1 + 0.3125 |x|) (times t), interpolated at
// Chebyshev's nodes for |x| <= 16, where the bell has reached 0; relative error 1e-08. x^2 = (a^2) + (x - a)(x + a),
// a^2 exact in a float.
template <class T>
HT_HD inline Normal<T> normal(T x) {
  if constexpr (detail::here<T>) {
    const float size = std::abs(x), t = 1.0f / (1.0f + 0.3125f * size);
    const float a = (size + 0x1.8p16f) - 0x1.8p16f;  // to a multiple of 1/128
    const detail::Exponential e = detail::exponential(-0.5f * a * a, -0.5f * (size - a) * (size + a));
    const float bell = (1.0f + e.p) * e.scale * e.more;
    const float ratio =
        detail::polynomial(t, 0.124666206f, 0.124735415f, 0.111991724f, 0.0896697975f, 0.0564878501f, -0.00378340812f,
                           0.0751494176f, -0.151258211f, 0.0913081703f, -0.0189669638f);
    const float tail = bell * (ratio * t), rest = 1.0f - tail;
    return {bell, x > 0.0f ? rest : tail};
  } else {
    return {std::exp(T(-0.5) * x * x), T(0.5) * std::erfc(T(-0.70710678118654752440) * x)};
  }
}

}  // namespace ht::fn
