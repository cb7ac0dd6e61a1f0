// Element types of a Tensor, and the 16-bit floats as plain storage types with exact conversions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <limits>
#include <string_view>
#include <type_traits>

#include "core/error.h"

#if defined(__CUDACC__)
#define HT_HD __host__ __device__
#else
#define HT_HD
#endif

namespace ht {

enum class DType : uint8_t { f64, f32, f16, bf16, u8, i32, i64 };

size_t size_of(DType t);                // bytes of one element
std::string_view name_of(DType t);      // "f32"
DType parse_dtype(std::string_view s);  // inverse of name_of; throws Error on an unknown name
constexpr bool is_floating(DType t) { return t <= DType::bf16; }
constexpr bool is_half(DType t) { return t == DType::f16 || t == DType::bf16; }
std::ostream& operator<<(std::ostream& out, DType t);

namespace detail {
// IEEE binary32 -> binary16 bits, round to nearest even; overflow gives infinity, NaN stays NaN (quiet).
HT_HD constexpr uint16_t half_bits(float value) {
  const uint32_t f = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (f >> 16) & 0x8000u;
  const uint32_t a = f & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
  if (a >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above, infinity too
  if (a >= 0x38800000u) {                                              // normal half: rebias, then round
    const uint32_t rounded = a - 0x38000000u + 0xfffu + ((a >> 13) & 1u);
    return static_cast<uint16_t>(sign | (rounded >> 13));
  }
  // Subnormal half: adding 0.5 aligns the value so that the FPU itself rounds to a multiple of 2^-24.
  const float aligned = std::bit_cast<float>(a) + 0.5f;
  return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000u));
}

// Exact; a signalling NaN becomes quiet, as it does in the CPU's own conversion.
HT_HD constexpr float half_value(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t a = h & 0x7fffu;
  if (a > 0x7c00u) return std::bit_cast<float>(sign | 0x7fc00000u | ((a & 0x3ffu) << 13));
  if (a == 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u);
  if (a >= 0x0400u) return std::bit_cast<float>(sign | ((a << 13) + 0x38000000u));
  const float subnormal = static_cast<float>(a) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(subnormal));
}

// IEEE binary32 -> bfloat16 bits, round to nearest even.
HT_HD constexpr uint16_t bfloat16_bits(float value) {
  const uint32_t f = std::bit_cast<uint32_t>(value);
  if ((f & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((f >> 16) | 0x40u);
  return static_cast<uint16_t>((f + 0x7fffu + ((f >> 16) & 1u)) >> 16);
}
}  // namespace detail

struct Half {
  uint16_t bits = 0;
  Half() = default;
  HT_HD constexpr explicit Half(float v) : bits(detail::half_bits(v)) {}
  HT_HD constexpr explicit operator float() const { return detail::half_value(bits); }
};

struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  HT_HD constexpr explicit BFloat16(float v) : bits(detail::bfloat16_bits(v)) {}
  HT_HD constexpr explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};
static_assert(sizeof(Half) == 2 && sizeof(BFloat16) == 2);

// Bulk conversions (vectorised where the CPU can); `n` elements, the ranges must not overlap.
void to_float(const Half* in, float* out, int64_t n);
void to_float(const BFloat16* in, float* out, int64_t n);
void from_float(const float* in, Half* out, int64_t n);
void from_float(const float* in, BFloat16* out, int64_t n);

// False for an infinity or a NaN, told by the exponent's bits: a maximum misses NaN, a sum can overflow on its own, and
// fast-math would lie.
HT_HD constexpr bool finite_bits(float v) { return (std::bit_cast<uint32_t>(v) & 0x7f800000u) != 0x7f800000u; }
HT_HD constexpr bool finite_bits(double v) {
  return (std::bit_cast<uint64_t>(v) & 0x7ff0000000000000u) != 0x7ff0000000000000u;
}
HT_HD constexpr bool finite_bits(Half v) { return (v.bits & 0x7c00u) != 0x7c00u; }
HT_HD constexpr bool finite_bits(BFloat16 v) { return (v.bits & 0x7f80u) != 0x7f80u; }

// The type a kernel computes and accumulates in: FP32 for 16-bit storage, else the type itself.
template <class T>
struct Accumulate {
  using type = T;
};
template <>
struct Accumulate<Half> {
  using type = float;
};
template <>
struct Accumulate<BFloat16> {
  using type = float;
};
template <class T>
using acc_t = typename Accumulate<T>::type;

// Floating to integer: towards zero; out of range gives the nearest limit and NaN gives 0.
template <class To, class From>
HT_HD constexpr To saturate(From v) {
  using limits = std::numeric_limits<To>;
  if (v != v) return 0;
  if (v <= static_cast<From>(limits::min())) return limits::min();
  if (v >= static_cast<From>(limits::max())) return limits::max();
  return static_cast<To>(v);
}

// Converts one stored element to another type, through the wider floating type where one side is floating.
template <class To, class From>
HT_HD constexpr To convert_element(From v) {
  if constexpr (std::is_same_v<To, From>) {
    return v;
  } else if constexpr (std::is_same_v<From, Half> || std::is_same_v<From, BFloat16>) {
    return convert_element<To>(static_cast<float>(v));
  } else if constexpr (std::is_same_v<To, Half> || std::is_same_v<To, BFloat16>) {
    return To(static_cast<float>(v));
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    return saturate<To>(v);
  } else {
    return static_cast<To>(v);
  }
}

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<Half>() {
  return DType::f16;
}
template <>
constexpr DType dtype_of<BFloat16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::u8;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::i64;
}

// Calls f.operator()<T>() with the C++ type behind a floating dtype; an integer dtype is an Error naming `who`.
template <class F>
decltype(auto) dispatch_floating(DType t, std::string_view who, F&& f) {
  switch (t) {
    case DType::f64:
      return f.template operator()<double>();
    case DType::f32:
      return f.template operator()<float>();
    case DType::f16:
      return f.template operator()<Half>();
    case DType::bf16:
      return f.template operator()<BFloat16>();
    default:
      fail(who, ": dtype ", name_of(t), " is not floating; cast it to f64, f32, f16 or bf16 first");
  }
}

// Calls f.operator()<T, Wide>(): T behind `t`, Wide behind `wide`, which is t or, for a half t, f32.
template <class F>
decltype(auto) dispatch_widened(DType t, DType wide, std::string_view who, F&& f) {
  return dispatch_floating(t, who, [&]<class T>() -> decltype(auto) {
    if constexpr (sizeof(T) == 2) {
      if (wide == DType::f32) return f.template operator()<T, float>();
    }
    return f.template operator()<T, T>();
  });
}

// As dispatch_floating, over every dtype.
template <class F>
decltype(auto) dispatch_all(DType t, F&& f) {
  switch (t) {
    case DType::f64:
      return f.template operator()<double>();
    case DType::f32:
      return f.template operator()<float>();
    case DType::f16:
      return f.template operator()<Half>();
    case DType::bf16:
      return f.template operator()<BFloat16>();
    case DType::u8:
      return f.template operator()<uint8_t>();
    case DType::i32:
      return f.template operator()<int32_t>();
    default:
      return f.template operator()<int64_t>();
  }
}

}  // namespace ht
