#include "data/dataset.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "data/augment_math.h"

namespace ht::data {

void ImageDataset::validate(std::string_view who) const {
  check(images.defined() && labels.defined(), who, ": the data set has no ", images.defined() ? "labels" : "images");
  check(
      images.dtype() == DType::u8 && images.rank() == 4 && images.dim(3) == 3 && images.dim(1) > 0 && images.dim(2) > 0,
      who, ": images must be u8 [n,h,w,3] (", Named{"images", images}, ")");
  check(labels.dtype() == DType::i32 && labels.rank() == 1 && labels.dim(0) == images.dim(0), who,
        ": labels must be i32, one for each of the ", images.dim(0), " images (", Named{"labels", labels}, ")");
  check(!images.device().is_cuda() && !labels.device().is_cuda(), who, ": the data set must be on the CPU (",
        Named{"images", images}, ", ", Named{"labels", labels}, ")");
  const int32_t* label = labels.data<int32_t>();
  for (int64_t i = 0; i < labels.numel(); ++i)
    check(label[i] >= 0 && label[i] < classes(), who, ": image ", i, " has label ", label[i], " but there are ",
          classes(), " classes");
}

ImageDataset ImageDataset::limit(int64_t n) const {
  check(n >= 1, "limit: ", n, " images; use 1 or more");
  if (n >= size()) return *this;
  return {images.rows(0, n), labels.rows(0, n), class_names, str(source, ", first ", n, " of ", size(), " images")};
}

ImageDataset ImageDataset::subset(std::span<const int64_t> indices) const {
  const int64_t n = static_cast<int64_t>(indices.size()), all = size();
  check(images.defined(), "subset: the data set is empty");
  const Shape shape = images.shape().with(0, n);
  const size_t image_bytes = static_cast<size_t>(shape.product(1, 4));
  ImageDataset part{Tensor::empty(shape, DType::u8), Tensor::empty({n}, DType::i32), class_names,
                    str(source, ", ", n, " of ", all, " images")};
  const uint8_t* from = images.data<uint8_t>();
  uint8_t* to = part.images.data<uint8_t>();
  for (int64_t i = 0; i < n; ++i) {
    const int64_t k = indices[static_cast<size_t>(i)];
    check(k >= 0 && k < all, "subset: index ", k, " is outside the ", all, " images");
    std::memcpy(to + static_cast<size_t>(i) * image_bytes, from + static_cast<size_t>(k) * image_bytes, image_bytes);
    part.labels.data<int32_t>()[i] = labels.data<int32_t>()[k];
  }
  return part;
}

ImageDataset ImageDataset::mirrored() const {
  validate("mirrored");
  ImageDataset result{Tensor::empty_like(images), labels, class_names, str(source, ", mirrored")};
  const int64_t rows = images.shape().product(0, 2), w = images.dim(2);
  const uint8_t* from = images.data<uint8_t>();
  uint8_t* to = result.images.data<uint8_t>();
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t x = 0; x < w; ++x) std::copy_n(from + (row * w + x) * 3, 3, to + (row * w + w - 1 - x) * 3);
  return result;
}

std::vector<int64_t> ImageDataset::class_counts() const {
  validate("class_counts");
  std::vector<int64_t> counts(class_names.size());
  const int32_t* label = labels.data<int32_t>();
  for (int64_t i = 0; i < size(); ++i) ++counts[static_cast<size_t>(label[i])];
  return counts;
}

TrainTest split(const ImageDataset& all, int64_t held_out, uint64_t seed) {
  const int64_t n = all.size();
  check(held_out >= 1 && held_out < n, "split: cannot hold out ", held_out, " of ", n,
        " images; both parts need at least one");
  const std::vector<int32_t> order = permutation(n, seed, 0);
  std::vector<int64_t> test(order.begin(), order.begin() + held_out), train(order.begin() + held_out, order.end());
  std::sort(test.begin(), test.end());
  std::sort(train.begin(), train.end());
  return {all.subset(train), all.subset(test)};
}

std::vector<int32_t> permutation(int64_t n, uint64_t seed, uint64_t epoch) {
  check(n >= 0 && n <= INT32_MAX, "permutation: ", n, " items do not fit 32-bit indices");
  std::vector<int32_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  const PhiloxStream random{seed, kShuffleStream + epoch};
  for (uint64_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i, static_cast<uint32_t>(i))]);
  return order;
}

}  // namespace ht::data
