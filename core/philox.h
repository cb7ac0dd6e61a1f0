// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
// The n-th number of a stream is a pure function of (seed, offset + n): CPU and CUDA draw the same bits in any order.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "core/dtype.h"

namespace ht {

using Philox4 = std::array<uint32_t, 4>;

// Ten rounds of Philox-4x32 on a 128-bit counter with a 64-bit key.
HT_HD constexpr Philox4 philox4x32(Philox4 c, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = 0xD2511F53ull * c[0], p1 = 0xCD9E8D57ull * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// [0, 1) with 24 bits: exact in FP32.
HT_HD constexpr float to_uniform(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }

// A stream of random numbers addressed by index. Streams with different seed or `stream` are independent.
struct PhiloxStream {
  uint64_t seed = 0;
  uint64_t stream = 0;  // upper half of the counter: one per use (epoch, layer, draw)

  HT_HD constexpr Philox4 block(uint64_t i) const {  // numbers 4i .. 4i+3
    return philox4x32({static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), static_cast<uint32_t>(stream),
                       static_cast<uint32_t>(stream >> 32)},
                      static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  }
  HT_HD constexpr uint32_t bits(uint64_t i) const { return block(i / 4)[i % 4]; }
  HT_HD constexpr float uniform(uint64_t i) const { return to_uniform(bits(i)); }
  // Uniform integer in [0, n), n below 2^32 (multiply-shift; bias below n / 2^32).
  HT_HD constexpr uint32_t below(uint64_t i, uint32_t n) const {
    return static_cast<uint32_t>((static_cast<uint64_t>(bits(i)) * n) >> 32);
  }
  // Standard normal by Box-Muller on numbers 2i and 2i+1; computed in double, so CPU and CUDA agree after rounding.
  HT_HD double normal(uint64_t i) const {
    const uint64_t pair = 2 * (i / 2);
    const Philox4 b = block(pair / 4);
    const double u = (b[pair % 4] + 1.0) * 0x1p-32, v = b[pair % 4 + 1] * 0x1p-32;
    const double r = std::sqrt(-2.0 * std::log(u)), angle = 6.283185307179586 * v;
    return i % 2 ? r * std::sin(angle) : r * std::cos(angle);
  }
};

}  // namespace ht
