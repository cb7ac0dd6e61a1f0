// Labelled images in memory, and the ways to take parts of them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace ht::data {

struct ImageDataset {
  Tensor images;                         // u8 [n, h, w, 3], red green blue; CIFAR-10 and the generated set are 32x32
  Tensor labels;                         // i32 [n]
  std::vector<std::string> class_names;  // label -> name
  std::string source;                    // where it came from, for the first line of a run

  int64_t size() const { return images.defined() ? images.dim(0) : 0; }
  int64_t classes() const { return static_cast<int64_t>(class_names.size()); }
  // Throws Error naming `who` unless shapes, dtypes and devices are as above and each label is below classes().
  void validate(std::string_view who) const;

  // The first n images (all of them when there are fewer), sharing storage. Throws Error below 1.
  ImageDataset limit(int64_t n) const;
  // A copy of the images at `indices`, in that order. Throws Error on an index outside [0, size()).
  ImageDataset subset(std::span<const int64_t> indices) const;
  // A copy, each image mirrored left to right.
  ImageDataset mirrored() const;
  // Images per label. [classes()]
  std::vector<int64_t> class_counts() const;
};

struct TrainTest {
  ImageDataset train;
  ImageDataset test;
};

// Holds out `held_out` images, drawn by `seed`, as `.test`; the rest is `.train`, both in their old order. Throws Error
// unless both parts get at least one image.
TrainTest split(const ImageDataset& all, int64_t held_out, uint64_t seed);

// A permutation of 0..n-1 that depends on (seed, epoch) only: Fisher-Yates with Philox numbers, so every machine and
// every rank gets the same one.
std::vector<int32_t> permutation(int64_t n, uint64_t seed, uint64_t epoch);

}  // namespace ht::data
