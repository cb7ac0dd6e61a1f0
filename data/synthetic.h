// A generated set of ten classes in CIFAR-10's shape, for training without a download: drawn shapes and textures at
// random places, sizes, angles and colours, over a gradient with stray lines, a covered edge and noise.
#pragma once

#include "data/dataset.h"

namespace ht::data {

struct SyntheticOptions {
  int64_t train = 8000;  // images
  int64_t test = 2000;
  uint64_t seed = 0;
};

// Classes: disc, ring, square, triangle, cross, horizontal, vertical and diagonal stripes, checkerboard, dots; image i
// has label i % 10. Image i of each part depends on (seed, i) only, in integer arithmetic throughout: the same bytes on
// every machine, and a smaller set is the beginning of a larger one. Throws Error when a count is below 1.
TrainTest make_synthetic(const SyntheticOptions& options = {});

}  // namespace ht::data
