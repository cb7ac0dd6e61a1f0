#include "models/vgg.h"

#include <algorithm>
#include <cmath>

#include "models/layers.h"

namespace ht::models {

namespace {
// Convolutions in each of the five blocks; a max pool ends a block.
std::vector<int> blocks_of(int depth) {
  switch (depth) {
    case 11:
      return {1, 1, 2, 2, 2};
    case 13:
      return {2, 2, 2, 2, 2};
    case 16:
      return {2, 2, 3, 3, 3};
    case 19:
      return {2, 2, 4, 4, 4};
    default:
      fail("vgg: depth ", depth, " is unknown; use 11, 13, 16 or 19");
  }
}
constexpr int64_t kChannels[] = {64, 128, 256, 512, 512};

// [n, h, w, 3] -> [n, h / 32, w / 32, 512 * width]
nn::Sequential features(int depth, bool batch_norm, bool bias, double width) {
  nn::Sequential net;
  int64_t in = 3;
  const std::vector<int> blocks = blocks_of(depth);
  for (size_t b = 0; b < blocks.size(); ++b) {
    const int64_t out = scale_channels(kChannels[b], width);
    for (int i = 0; i < blocks[b]; ++i) {
      net.add<nn::Conv2d>(in, out, 3, nn::ConvOptions{.padding = 1, .bias = bias});
      if (batch_norm) net.add<nn::BatchNorm2d>(out);
      net.add<nn::ReLU>();
      in = out;
    }
    net.add<nn::MaxPool2d>(2);
  }
  return net;
}
}  // namespace

int64_t scale_channels(int64_t base, double width) {
  check(width > 0 && width <= 16, "width: ", width, " must be in (0, 16]");
  return std::max<int64_t>(8, 8 * std::llround(static_cast<double>(base) * width / 8));
}

nn::Sequential vgg16(const Vgg16Options& o) {
  check(o.classes > 0, "vgg16: classes ", o.classes, " must be positive");
  const int64_t channels = scale_channels(512, o.width), hidden = scale_channels(4096, o.width);
  nn::Sequential classifier;
  for (const int64_t in : {channels, hidden}) {
    classifier.add<nn::Conv2d>(in, hidden, 1, nn::ConvOptions{.bias = false});
    classifier.add<nn::BatchNorm2d>(hidden);
    classifier.add<nn::ReLU>();
  }
  classifier.add<nn::Conv2d>(hidden, o.classes, 1, nn::ConvOptions{.bias = false});

  nn::Sequential net;
  net.append(features(16, true, false, o.width), "features");
  net.append(std::move(classifier), "classifier");
  net.append(nn::Flatten(), "flatten");
  return net;
}

nn::Sequential vgg(const VggOptions& o) {
  check(o.classes > 0 && o.hidden >= 0, "vgg: classes ", o.classes, ", hidden ", o.hidden,
        "; classes must be positive, hidden not negative");
  check(o.image > 0 && o.image % 32 == 0, "vgg: image ", o.image, " must be a positive multiple of 32");
  const int64_t side = o.image / 32, in = scale_channels(512, o.width) * side * side;
  const nn::LinearOptions first{.spatial = {side, side}};

  nn::Sequential net;
  net.append(features(o.depth, o.batch_norm, true, o.width), "features");
  net.append(nn::Flatten(), "flatten");
  if (o.hidden == 0) {
    net.append(nn::Linear(in, o.classes, first), "classifier");
    return net;
  }
  const int64_t hidden = scale_channels(o.hidden, o.width);
  nn::Sequential classifier;
  classifier.add<nn::Linear>(in, hidden, first);
  classifier.add<nn::ReLU>();
  classifier.add<nn::Dropout>(o.dropout);
  classifier.add<nn::Linear>(hidden, hidden);
  classifier.add<nn::ReLU>();
  classifier.add<nn::Dropout>(o.dropout);
  classifier.add<nn::Linear>(hidden, o.classes);
  net.append(std::move(classifier), "classifier");
  return net;
}

nn::Sequential mlp(const MlpOptions& o) {
  check(o.sizes.size() >= 2, "mlp: ", o.sizes.size(), " sizes; needs at least input and output");
  nn::Sequential net;
  for (size_t i = 0; i + 1 < o.sizes.size(); ++i) {
    if (i > 0) net.add<nn::ReLU>();
    net.add<nn::Linear>(o.sizes[i], o.sizes[i + 1]);
  }
  return net;
}

}  // namespace ht::models
