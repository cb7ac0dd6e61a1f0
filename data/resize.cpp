#include "data/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace ht::data {

namespace {
void check_image(const char* who, const Tensor& image) {
  check(image.defined() && image.dtype() == DType::u8 && image.rank() == 3 && image.dim(2) == 3 && image.numel() > 0,
        who, ": needs u8 [h, w, 3] (", Named{"image", image}, ")");
}

// A new pixel is the sum of weights[k] times old pixel first + k.
struct Taps {
  int64_t first = 0;
  std::vector<float> weights;
};

std::vector<Taps> taps_of(int64_t in, int64_t out) {
  std::vector<Taps> all(static_cast<size_t>(out));
  for (int64_t o = 0; o < out; ++o) {
    Taps& t = all[static_cast<size_t>(o)];
    if (in >= out) {  // the new pixel covers [o in, (o + 1) in) / out: whole numbers until the last division
      t.first = o * in / out;
      for (int64_t i = t.first; i * out < (o + 1) * in; ++i) {
        const int64_t covered = std::min((i + 1) * out, (o + 1) * in) - std::max(i * out, o * in);
        t.weights.push_back(static_cast<float>(static_cast<double>(covered) / static_cast<double>(in)));
      }
    } else {
      const double centre = (static_cast<double>(o) + 0.5) * static_cast<double>(in) / static_cast<double>(out) - 0.5;
      const double inside = std::clamp(centre, 0.0, static_cast<double>(in - 1));
      t.first = static_cast<int64_t>(inside);
      const float rest = static_cast<float>(inside - std::floor(inside));
      t.weights = {1 - rest};
      if (rest > 0) t.weights.push_back(rest);
    }
  }
  return all;
}
}  // namespace

Tensor center_crop(const Tensor& image) {
  check_image("center_crop", image);
  const int64_t h = image.dim(0), w = image.dim(1), side = std::min(h, w);
  const Tensor out = Tensor::empty({side, side, 3}, DType::u8);
  const uint8_t* from = image.data<uint8_t>() + ((h - side) / 2 * w + (w - side) / 2) * 3;
  for (int64_t y = 0; y < side; ++y)
    std::memcpy(out.data<uint8_t>() + y * side * 3, from + y * w * 3, static_cast<size_t>(side) * 3);
  return out;
}

Tensor resize(const Tensor& image, int64_t height, int64_t width) {
  check_image("resize", image);
  check(height > 0 && width > 0, "resize: to ", width, "x", height, "; both must be positive");
  const int64_t h = image.dim(0), w = image.dim(1);
  const std::vector<Taps> across = taps_of(w, width), down = taps_of(h, height);
  std::vector<float> rows(static_cast<size_t>(h * width * 3), 0.0f);  // [h, width, 3]
  float* row = rows.data();
  for (int64_t y = 0; y < h; ++y)
    for (const auto& [first, weights] : across) {
      const uint8_t* in = image.data<uint8_t>() + (y * w + first) * 3;
      for (const float weight : weights)
        for (int c = 0; c < 3; ++c) row[c] += weight * static_cast<float>(*in++);
      row += 3;
    }
  const Tensor out = Tensor::empty({height, width, 3}, DType::u8);
  uint8_t* to = out.data<uint8_t>();
  std::vector<float> sum(static_cast<size_t>(width * 3));
  for (const auto& [first, weights] : down) {
    std::fill(sum.begin(), sum.end(), 0.0f);
    const float* in = rows.data() + first * width * 3;
    for (const float weight : weights)
      for (float& s : sum) s += weight * *in++;
    for (const float s : sum) *to++ = static_cast<uint8_t>(std::lround(std::min(s, 255.0f)));
  }
  return out;
}

}  // namespace ht::data
