// Pictures in files: PNG by libpng, JPEG by libjpeg (libjpeg-turbo), binary PPM by itself.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/tensor.h"

namespace ht::data {

constexpr int64_t kMaxPixels = int64_t{1} << 26;  // of a picture that is read: 8192 x 8192

// A picture u8 [h, w, 3], red green blue. What it is its first bytes tell, not its name. Grey ones and palettes become
// colours, 16-bit channels 8-bit, transparency shows white; orientation tags are not followed. Throws Error naming the
// file when it cannot be read, is none of the three, is damaged, cut off or larger than kMaxPixels, or when this build
// lacks the library.
Tensor read_image(const std::filesystem::path& file);

// The bytes of a PNG file of image u8 [h, w, 3]. Throws Error in a build without libpng.
std::string encode_png(const Tensor& image);

}  // namespace ht::data
