#include "core/dtype.h"

#include <ostream>

#if defined(__F16C__) && defined(__AVX__)
#include <immintrin.h>
#endif

namespace ht {

namespace {
constexpr std::string_view kNames[] = {"f64", "f32", "f16", "bf16", "u8", "i32", "i64"};
constexpr size_t kSizes[] = {8, 4, 2, 2, 1, 4, 8};
}  // namespace

size_t size_of(DType t) { return kSizes[static_cast<int>(t)]; }
std::string_view name_of(DType t) { return kNames[static_cast<int>(t)]; }
std::ostream& operator<<(std::ostream& out, DType t) { return out << name_of(t); }

DType parse_dtype(std::string_view s) {
  for (int i = 0; i < 7; ++i)
    if (kNames[i] == s) return static_cast<DType>(i);
  fail("dtype: '", s, "' is unknown; use f64, f32, f16, bf16, u8, i32 or i64");
}

void to_float(const Half* in, float* out, int64_t n) {
  int64_t i = 0;
#if defined(__F16C__) && defined(__AVX__)
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
#endif
  for (; i < n; ++i) out[i] = static_cast<float>(in[i]);
}

void from_float(const float* in, Half* out, int64_t n) {
  int64_t i = 0;
#if defined(__F16C__) && defined(__AVX__)
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#endif
  for (; i < n; ++i) out[i] = Half(in[i]);
}

void to_float(const BFloat16* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(in[i]);
}

void from_float(const float* in, BFloat16* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = BFloat16(in[i]);
}

}  // namespace ht
