// The decisions of data augmentation, shared by the CPU loop and the CUDA kernel so that both give the same bits. Only
// integer arithmetic; every decision is a pure function of (seed, epoch, index of the image in the data set), whatever
// the batch size, the rank or the order of work.
#pragma once

#include <cstdint>

#include "core/philox.h"

namespace ht::data {

// Upper counter words of the data streams, far from those of core/context.h's Generator, which counts from 0.
inline constexpr uint64_t kShuffleStream = 0xD1ull << 56;  // + epoch
inline constexpr uint64_t kAugmentStream = 0xD2ull << 56;  // + epoch
inline constexpr uint64_t kFlipStream = 0xD3ull << 56;     // one bit an image for alternating flips

enum class Flip : uint8_t {
  none,
  random,       // mirrored left to right with probability 1/2, drawn anew each epoch
  alternating,  // drawn once an image, then mirrored every other epoch: any two epochs show both sides
};

struct AugmentOptions {
  Flip flip = Flip::none;
  int crop_pad = 0;  // pixels of reflected border, then a random crop of the old size; below height and width
  int cutout = 0;    // side of a square of zeros (the mean after normalisation) around a random pixel, clipped; 0: none
};

// What happens to one image: mirror(crop(image)), then cutout in the coordinates of the result.
struct Augmentation {
  bool flip = false;
  int dy = 0, dx = 0;  // source = result + (dy, dx), within [-crop_pad, crop_pad], reflected at the borders
  int y0 = 0, y1 = 0, x0 = 0, x1 = 0;  // cut rows [y0, y1) and columns [x0, x1)
};

// Mirrors an index at the borders without repeating them: -1 -> 1, n -> n - 2. For i within (-n, 2n - 1).
HT_HD constexpr int reflect(int i, int n) { return i < 0 ? -i : i >= n ? 2 * (n - 1) - i : i; }

HT_HD constexpr int scale_to(uint32_t bits, int n) {  // [0, n) from 32 random bits
  return static_cast<int>((static_cast<uint64_t>(bits) * static_cast<uint32_t>(n)) >> 32);
}

// Each decision has its own 32 bits of one Philox block, so that switching one on leaves the others as they were.
HT_HD constexpr Augmentation augmentation(const AugmentOptions& options, uint64_t seed, uint64_t epoch, int64_t index,
                                          int h, int w) {
  const uint64_t i = static_cast<uint64_t>(index);
  const Philox4 random = PhiloxStream{seed, kAugmentStream + epoch}.block(i);
  Augmentation a;
  if (options.flip == Flip::random) a.flip = random[0] >> 31;
  if (options.flip == Flip::alternating) a.flip = ((PhiloxStream{seed, kFlipStream}.block(i)[0] >> 31) + epoch) % 2;
  a.dy = scale_to(random[1], 2 * options.crop_pad + 1) - options.crop_pad;
  a.dx = scale_to(random[2], 2 * options.crop_pad + 1) - options.crop_pad;
  if (options.cutout > 0) {
    const int centre = scale_to(random[3], h * w);
    const int top = centre / w - options.cutout / 2, left = centre % w - options.cutout / 2;
    a.y0 = top < 0 ? 0 : top;
    a.x0 = left < 0 ? 0 : left;
    a.y1 = top + options.cutout < h ? top + options.cutout : h;
    a.x1 = left + options.cutout < w ? left + options.cutout : w;
  }
  return a;
}

// The pixel of the source that lands on (y, x) of the result; false where it is cut out.
HT_HD constexpr bool source_pixel(const Augmentation& a, int y, int x, int h, int w, int& from_y, int& from_x) {
  from_y = reflect(y + a.dy, h);
  from_x = reflect((a.flip ? w - 1 - x : x) + a.dx, w);
  return y < a.y0 || y >= a.y1 || x < a.x0 || x >= a.x1;
}

}  // namespace ht::data
