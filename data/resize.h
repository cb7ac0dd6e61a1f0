// From a picture of any size to the square that a network takes.
#pragma once

#include "core/tensor.h"

namespace ht::data {

// The largest square in the middle of image u8 [h, w, 3].
Tensor center_crop(const Tensor& image);

// image u8 [h, w, 3] -> [height, width, 3], each axis on its own. Where it shrinks, a new pixel is the mean of the area
// it covers, parts of pixels included; where it grows, it lies between the two nearest old ones (bilinear, half-pixel
// centres, as PyTorch's interpolate with align_corners=False).
Tensor resize(const Tensor& image, int64_t height, int64_t width);

}  // namespace ht::data
