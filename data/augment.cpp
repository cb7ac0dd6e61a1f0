#include "data/augment.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace ht::data {

Tensor normalization_table(const Normalization& normalization, DType dtype) {
  check(is_floating(dtype), "normalization_table: dtype ", dtype, " is not floating; use f32, f16, bf16 or f64");
  const Tensor table = Tensor::empty({3, 256});
  float* y = table.data<float>();
  for (size_t c = 0; c < 3; ++c) {
    const float mean = normalization.mean[c], std = normalization.std[c];
    check(std::isfinite(mean), "normalization_table: mean ", mean, " of channel ", c, " is not finite");
    check(std::isfinite(std) && std > 0, "normalization_table: std ", std, " of channel ", c,
          " is not finite and positive");
    for (size_t v = 0; v < 256; ++v) y[c * 256 + v] = (static_cast<float>(v) / 255.0f - mean) / std;
  }
  return table.to(dtype);
}

void check_augment(const AugmentOptions& options, int64_t h, int64_t w, std::string_view who) {
  check(options.crop_pad >= 0 && options.crop_pad < std::min(h, w), who, ": crop_pad ", options.crop_pad,
        " is outside [0, ", std::min(h, w), ") for images of ", h, "x", w);
  check(options.cutout >= 0, who, ": cutout ", options.cutout, " is negative; 0 turns it off");
}

namespace {
// One image. `column` [w] is scratch: the source offset of each column of the result.
template <class T>
void augment_image(const uint8_t* from, T* to, const Augmentation& a, const T* table, int h, int w, int* column) {
  int from_y, from_x;
  for (int x = 0; x < w; ++x) {
    source_pixel(a, 0, x, h, w, from_y, from_x);
    column[x] = 3 * from_x;
  }
  for (int y = 0; y < h; ++y) {
    source_pixel(a, y, 0, h, w, from_y, from_x);
    const uint8_t* row = from + int64_t{3} * w * from_y;
    T* out = to + int64_t{3} * w * y;
    for (int x = 0; x < w; ++x) {
      const uint8_t* pixel = row + column[x];
      out[3 * x + 0] = table[pixel[0]];
      out[3 * x + 1] = table[256 + pixel[1]];
      out[3 * x + 2] = table[512 + pixel[2]];
    }
    if (y >= a.y0 && y < a.y1) std::fill(out + 3 * a.x0, out + 3 * a.x1, T(0.0f));
  }
}
}  // namespace

Tensor augment(const Tensor& images, std::span<const int32_t> indices, const AugmentOptions& options,
               const Tensor& table, uint64_t seed, uint64_t epoch) {
  check(images.defined() && images.dtype() == DType::u8 && images.rank() == 4 && images.dim(3) == 3,
        "augment: images must be u8 [n,h,w,3] (", Named{"images", images}, ")");
  check(table.defined() && table.shape() == Shape{3, 256}, "augment: the table must be [3,256] (",
        Named{"table", table}, ")");
  check(!images.device().is_cuda() && !table.device().is_cuda(), "augment: inputs must be on the CPU (",
        Named{"images", images}, ", ", Named{"table", table}, ")");
  const int64_t n = static_cast<int64_t>(indices.size()), all = images.dim(0);
  const int h = static_cast<int>(images.dim(1)), w = static_cast<int>(images.dim(2));
  check_augment(options, h, w, "augment");
  for (const int32_t i : indices) check(i >= 0 && i < all, "augment: index ", i, " is outside the ", all, " images");

  const Tensor batch = Tensor::empty(images.shape().with(0, n), table.dtype());
  const int64_t image_size = int64_t{3} * h * w;
  dispatch_floating(table.dtype(), "augment", [&]<class T>() {
    const uint8_t* from = images.data<uint8_t>();
    const T* values = table.data<T>();
    T* to = batch.data<T>();
    std::vector<int> column(static_cast<size_t>(w));
    for (const int64_t index : indices) {
      augment_image(from + index * image_size, to, augmentation(options, seed, epoch, index, h, w), values, h, w,
                    column.data());
      to += image_size;
    }
  });
  return batch;
}

}  // namespace ht::data
