// A batch from bytes: augmentation and normalisation in one pass over the pixels.
#pragma once

#include <array>
#include <span>

#include "core/tensor.h"
#include "data/augment_math.h"

namespace ht::data {

// y = (x / 255 - mean) / std for each of red, green and blue, with x a byte.
struct Normalization {
  std::array<float, 3> mean{0, 0, 0};
  std::array<float, 3> std{1, 1, 1};

  static Normalization half() { return {{0.5f, 0.5f, 0.5f}, {0.5f, 0.5f, 0.5f}}; }  // to [-1, 1]
  // Mean and deviation of CIFAR-10's 50,000 training images.
  static Normalization cifar10() { return {{0.4914f, 0.4822f, 0.4465f}, {0.2470f, 0.2435f, 0.2616f}}; }
};

// [3, 256] in `dtype`: y for every byte, in that order of FP32 operations, then rounded once. The loader looks results
// up here instead of computing them, so every device and compiler gives the same bits. Throws Error unless each mean is
// finite and each std finite and positive.
Tensor normalization_table(const Normalization& normalization, DType dtype);

// Throws Error naming `who` on options that do not fit images of h x w: crop_pad outside [0, min(h, w)), cutout < 0.
void check_augment(const AugmentOptions& options, int64_t h, int64_t w, std::string_view who);

// x[k] = the augmented, normalised image number indices[k].  images u8 [n, h, w, 3], table [3, 256] of a floating dtype
// -> [indices.size(), h, w, 3] of the table's dtype. Throws Error on an index outside the images. Works on the
// calling thread alone: a batch of 128 takes under half a millisecond, less than waking other threads can cost.
Tensor augment(const Tensor& images, std::span<const int32_t> indices, const AugmentOptions& options,
               const Tensor& table, uint64_t seed, uint64_t epoch);

// Which images of an order the next batch takes, on the device, where a captured step moves it: i64 [3], the first one,
// the epoch, and a counter that is 0 between batches.
inline constexpr int64_t kCursorSize = 3;

// The same on a CUDA device (data/augment.cu), for images, labels, order (i32), cursor and table that live there: x [n,
// h, w, 3] and y i32 [n] of the images order[first] .. order[first + n - 1]. Bit for bit what augment gives. Moves the
// cursor's first image on by `stride`.
void augment_cuda(const Tensor& images, const Tensor& labels, const Tensor& order, const Tensor& cursor, int64_t stride,
                  const AugmentOptions& options, const Tensor& table, uint64_t seed, const Tensor& x, const Tensor& y);

}  // namespace ht::data
