// The networks: the seed's VGG16, the classic VGG family, and a multi-layer perceptron.
#pragma once

#include <vector>

#include "models/sequential.h"

namespace ht::models {

struct Vgg16Options {
  int64_t classes = 10;
  double width = 1.0;  // scales every channel count, rounded to a multiple of 8, at least 8; 1 is the real network
};
// The seed's network for [n, 32, 32, 3] -> logits [n, classes]: 13 3x3 convolutions, 5 max pools, then 1x1 convolutions
// 512 -> 4096 -> 4096 -> classes; batch norm and ReLU after each but the last; no bias anywhere. 33,650,624 parameters
// with 10 classes. Children "features", "classifier", "flatten".
nn::Sequential vgg16(const Vgg16Options& options = {});

struct VggOptions {
  int depth = 16;  // 11, 13, 16 or 19
  bool batch_norm = true;
  int64_t classes = 10;
  double width = 1.0;     // as above; the head's hidden layers too
  int64_t image = 32;     // side of the input, a multiple of 32; above 32 the first Linear sees a map above 1x1
  int64_t hidden = 4096;  // the head is 512 -> hidden -> hidden -> classes; 0: one Linear named "classifier"
  double dropout = 0.5;   // after each hidden layer
};
// Simonyan and Zisserman (2014), configurations A, B, D and E, convolutions with bias: torchvision's names
// ("features.0.weight", "classifier.6.bias") and file layout, so that PyTorch's files load.
nn::Sequential vgg(const VggOptions& options = {});

struct MlpOptions {
  std::vector<int64_t> sizes;  // input, hidden layers, output
};
// [n, sizes.front()] -> [n, sizes.back()]: Linear layers with ReLU between.
nn::Sequential mlp(const MlpOptions& options);

// base * width to the nearest multiple of 8, at least 8. Throws Error unless 0 < width <= 16.
int64_t scale_channels(int64_t base, double width);

}  // namespace ht::models
