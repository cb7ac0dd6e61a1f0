#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "data/augment.h"
#include "tests/data_helpers.h"

namespace ht::data {

namespace {
const std::vector<int32_t> kFirst{0};

// A table that gives bytes back as they are, to follow pixels.
Tensor identity_table() {
  const Tensor table = Tensor::empty({3, 256});
  for (int i = 0; i < 768; ++i) table.data<float>()[i] = static_cast<float>(i % 256);
  return table;
}

// One image of h x w: 10 * row + column + 1 in red, 80 more in green, 160 more in blue.
Tensor marked_image(int h, int w) {
  const Tensor image = Tensor::empty({1, h, w, 3}, DType::u8);
  for (int y = 0; y < h; ++y)
    for (int x = 0; x < w; ++x)
      for (int c = 0; c < 3; ++c)
        image.data<uint8_t>()[(y * w + x) * 3 + c] = static_cast<uint8_t>(80 * c + 10 * y + x + 1);
  return image;
}

std::vector<double> channel(const Tensor& batch, int c) {
  std::vector<double> out;
  for (int64_t i = c; i < batch.numel(); i += 3) out.push_back(batch.at(i));
  return out;
}

// The first epoch in which image 0, of h x w, gets what `want` asks for.
template <class F>
uint64_t find_epoch(const AugmentOptions& options, int h, int w, F want) {
  for (uint64_t epoch = 0; epoch < 100000; ++epoch)
    if (want(augmentation(options, 1, epoch, 0, h, w))) return epoch;
  FAIL("no such epoch");
  return 0;
}
}  // namespace

TEST_CASE("Normalisation table: values by hand, FP32 order, rounded once to halves") {
  const Tensor half = normalization_table(Normalization::half(), DType::f32);
  CHECK(half.at(0) == -1);
  CHECK(half.at(255) == 1);
  CHECK(half.at(512 + 51) == doctest::Approx(-0.6).epsilon(1e-6));
  const Tensor cifar = normalization_table(Normalization::cifar10(), DType::f32);
  CHECK(cifar.at(0) == doctest::Approx(-0.4914 / 0.2470));
  CHECK(cifar.at(256 + 255) == doctest::Approx((1 - 0.4822) / 0.2435));
  CHECK(cifar.at(512 + 128) == doctest::Approx((128 / 255.0 - 0.4465) / 0.2616));
  for (const DType t : {DType::f16, DType::bf16, DType::f64}) {
    const Tensor table = normalization_table(Normalization::cifar10(), t);
    CHECK(table.dtype() == t);
    CHECK(same_bytes(table, cifar.to(t)));
  }
  CHECK(contains(error_of([] { normalization_table({}, DType::u8); }), "u8 is not floating"));
  CHECK(contains(error_of([] { normalization_table({.std = {1, 0, 1}}, DType::f32); }), "std 0 of channel 1"));
  CHECK(contains(error_of([] { normalization_table({.std = {1, 1, -2}}, DType::f32); }), "std -2 of channel 2"));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(contains(error_of([&] { normalization_table({.mean = {nan, 0, 0}}, DType::f32); }), "mean nan of channel 0"));
}

TEST_CASE("Without options a batch is the chosen images, normalised") {
  const ImageDataset set = random_set(5, 6, 7);
  const Tensor table = normalization_table(Normalization::cifar10(), DType::f32);
  const std::vector<int32_t> indices{4, 0, 4};
  const Tensor x = augment(set.images, indices, {}, table, 0, 0);
  REQUIRE(x.shape() == Shape{3, 6, 7, 3});
  const int64_t size = 6 * 7 * 3;
  for (int64_t k = 0; k < 3; ++k)
    for (int64_t i = 0; i < size; ++i) {
      const int64_t byte = static_cast<int64_t>(set.images.at(indices[static_cast<size_t>(k)] * size + i));
      CHECK(x.at(k * size + i) == table.at(i % 3 * 256 + byte));
    }
}

TEST_CASE("Flip mirrors columns and nothing else") {
  const AugmentOptions options{.flip = Flip::random};
  const uint64_t yes = find_epoch(options, 2, 3, [](const Augmentation& a) { return a.flip; });
  const uint64_t no = find_epoch(options, 2, 3, [](const Augmentation& a) { return !a.flip; });
  const Tensor image = marked_image(2, 3), flipped = augment(image, kFirst, options, identity_table(), 1, yes);
  CHECK(channel(flipped, 0) == std::vector<double>{3, 2, 1, 13, 12, 11});
  CHECK(channel(flipped, 1) == std::vector<double>{83, 82, 81, 93, 92, 91});
  CHECK(channel(flipped, 2) == std::vector<double>{163, 162, 161, 173, 172, 171});
  CHECK(channel(augment(image, kFirst, options, identity_table(), 1, no), 0) ==
        std::vector<double>{1, 2, 3, 11, 12, 13});
}

TEST_CASE("Crop shifts, and borders reflect without repeating the edge") {
  const AugmentOptions options{.crop_pad = 2};
  const uint64_t epoch = find_epoch(options, 3, 4, [](const Augmentation& a) { return a.dy == -2 && a.dx == 1; });
  const Tensor x = augment(marked_image(3, 4), kFirst, options, identity_table(), 1, epoch);
  // Rows come from -2, -1, 0 -> 2, 1, 0; columns from 1, 2, 3, 4 -> 1, 2, 3, 2.
  CHECK(channel(x, 0) == std::vector<double>{22, 23, 24, 23, 12, 13, 14, 13, 2, 3, 4, 3});
  CHECK(reflect(-1, 5) == 1);
  CHECK(reflect(-4, 5) == 4);
  CHECK(reflect(5, 5) == 3);
  CHECK(reflect(8, 5) == 0);
  CHECK(reflect(0, 1) == 0);
}

TEST_CASE("A crop and a flip: the crop is mirrored") {
  const AugmentOptions options{.flip = Flip::random, .crop_pad = 1};
  const uint64_t epoch =
      find_epoch(options, 2, 4, [](const Augmentation& a) { return a.flip && a.dy == 1 && a.dx == -1; });
  // Columns -1, 0, 1, 2 -> 1, 0, 1, 2: marks 2 1 2 3, mirrored 3 2 1 2; rows 1, 2 -> 1, 0.
  CHECK(channel(augment(marked_image(2, 4), kFirst, options, identity_table(), 1, epoch), 0) ==
        std::vector<double>{13, 12, 11, 12, 3, 2, 1, 2});
}

TEST_CASE("Cutout zeroes a square, clipped at the edges, in the coordinates of the result") {
  const AugmentOptions options{.cutout = 2};
  const auto cut_at = [&](int y0, int x0) {
    return find_epoch(options, 3, 4, [=](const Augmentation& a) {
      return a.y0 == y0 && a.x0 == x0 && a.y1 - y0 == 2 && a.x1 - x0 == 2;
    });
  };
  const Tensor image = marked_image(3, 4);
  const Tensor inside = augment(image, kFirst, options, identity_table(), 1, cut_at(1, 2));
  CHECK(channel(inside, 0) == std::vector<double>{1, 2, 3, 4, 11, 12, 0, 0, 21, 22, 0, 0});
  CHECK(channel(inside, 2) == std::vector<double>{161, 162, 163, 164, 171, 172, 0, 0, 181, 182, 0, 0});
  const uint64_t corner = find_epoch(options, 3, 4, [](const Augmentation& a) { return a.y1 == 1 && a.x1 == 1; });
  CHECK(channel(augment(image, kFirst, options, identity_table(), 1, corner), 0) ==
        std::vector<double>{0, 2, 3, 4, 11, 12, 13, 14, 21, 22, 23, 24});
  // Zero after normalisation, even where no byte maps to zero.
  const Tensor table = normalization_table(Normalization::cifar10(), DType::f16);
  CHECK(augment(image, kFirst, options, table, 1, corner).at(0) == 0);
  // A square larger than the image clears it.
  const Tensor none = augment(image, kFirst, {.cutout = 100}, identity_table(), 1, 0);
  CHECK(none.to_vector() == std::vector<double>(36, 0.0));
  // An odd side: centre in the middle of three.
  const Augmentation odd =
      augmentation({.cutout = 3}, 1,
                   find_epoch({.cutout = 3}, 9, 9,
                              [](const Augmentation& a) { return a.y0 > 0 && a.x0 > 0 && a.y1 < 9 && a.x1 < 9; }),
                   0, 9, 9);
  CHECK(odd.y1 - odd.y0 == 3);
  CHECK(odd.x1 - odd.x0 == 3);
}

TEST_CASE("All at once, every dtype, against a naive reference") {
  const int h = 9, w = 8, pad = 4, side = 5;
  const ImageDataset set = random_set(40, h, w);
  std::vector<int32_t> indices(40);
  std::iota(indices.begin(), indices.end(), 0);
  std::swap(indices[3], indices[30]);
  const AugmentOptions options{.flip = Flip::alternating, .crop_pad = pad, .cutout = side};
  for (const DType t : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    const Tensor table = normalization_table(Normalization::cifar10(), t);
    const Tensor x = augment(set.images, indices, options, table, 11, 3);
    for (size_t k = 0; k < indices.size(); ++k) {
      // Pad by hand, then crop, then flip, then cut.
      const Augmentation a = augmentation(options, 11, 3, indices[k], h, w);
      const int ph = h + 2 * pad, pw = w + 2 * pad;
      std::vector<double> padded(static_cast<size_t>(ph * pw * 3));
      for (int y = 0; y < ph; ++y)
        for (int col = 0; col < pw; ++col)
          for (int c = 0; c < 3; ++c) {
            int sy = std::abs(y - pad), sx = std::abs(col - pad);
            if (sy > h - 1) sy = 2 * (h - 1) - sy;
            if (sx > w - 1) sx = 2 * (w - 1) - sx;
            const int64_t byte = static_cast<int64_t>(set.images.at(((indices[k] * h + sy) * w + sx) * 3 + c));
            padded[static_cast<size_t>((y * pw + col) * 3 + c)] = table.at(c * 256 + byte);
          }
      bool same = true;
      for (int y = 0; y < h; ++y)
        for (int col = 0; col < w; ++col)
          for (int c = 0; c < 3; ++c) {
            const int crop_col = a.flip ? w - 1 - col : col;
            double want = padded[static_cast<size_t>(((y + pad + a.dy) * pw + crop_col + pad + a.dx) * 3 + c)];
            if (y >= a.y0 && y < a.y1 && col >= a.x0 && col < a.x1) want = 0;
            same &= x.at(((static_cast<int64_t>(k) * h + y) * w + col) * 3 + c) == want;
          }
      CHECK(same);
    }
  }
}

TEST_CASE("Decisions depend on seed, epoch and image, and are uniform") {
  const AugmentOptions options{.flip = Flip::random, .crop_pad = 4, .cutout = 8};
  std::vector<int> dy(9), dx(9), top(32);
  int flips = 0;
  const int n = 18000;
  for (int i = 0; i < n; ++i) {
    const Augmentation a = augmentation(options, 5, 2, i, 32, 32);
    flips += a.flip;
    ++dy[static_cast<size_t>(a.dy + 4)];
    ++dx[static_cast<size_t>(a.dx + 4)];
    CHECK(a.y0 >= 0);
    CHECK(a.y1 <= 32);
    CHECK(a.y1 - a.y0 >= 4);  // at least half the side
    CHECK(a.x1 - a.x0 >= 4);
    CHECK(a.x1 - a.x0 <= 8);
  }
  CHECK(std::abs(flips - n / 2) < 300);  // deviation 67
  for (size_t k = 0; k < 9; ++k) {
    CHECK(std::abs(dy[k] - n / 9) < 200);  // deviation 42
    CHECK(std::abs(dx[k] - n / 9) < 200);
  }
  const auto same = [&](uint64_t seed, uint64_t epoch, int first) {
    int equal = 0;
    for (int i = 0; i < 100; ++i) {
      const Augmentation a = augmentation(options, 5, 2, i, 32, 32),
                         b = augmentation(options, seed, epoch, first + i, 32, 32);
      equal += a.dy == b.dy && a.dx == b.dx && a.y0 == b.y0 && a.x0 == b.x0;
    }
    return equal;
  };
  CHECK(same(5, 2, 0) == 100);
  CHECK(same(6, 2, 0) < 5);
  CHECK(same(5, 3, 0) < 5);
  CHECK(same(5, 2, 1000) < 5);
}

TEST_CASE("Options do not disturb one another") {
  for (int64_t i = 0; i < 50; ++i) {
    const Augmentation all = augmentation({.flip = Flip::random, .crop_pad = 4, .cutout = 8}, 1, 2, i, 32, 32);
    CHECK(all.flip == augmentation({.flip = Flip::random}, 1, 2, i, 32, 32).flip);
    CHECK(all.dy == augmentation({.crop_pad = 4}, 1, 2, i, 32, 32).dy);
    CHECK(all.dx == augmentation({.crop_pad = 4}, 1, 2, i, 32, 32).dx);
    CHECK(all.y0 == augmentation({.cutout = 8}, 1, 2, i, 32, 32).y0);
    const Augmentation none = augmentation({}, 1, 2, i, 32, 32);
    CHECK((!none.flip && none.dy == 0 && none.dx == 0 && none.y1 == 0 && none.x1 == 0));
  }
}

TEST_CASE("Alternating flips show each image mirrored every other epoch") {
  const AugmentOptions options{.flip = Flip::alternating};
  int first = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    const bool start = augmentation(options, 3, 0, i, 32, 32).flip;
    first += start;
    for (uint64_t epoch = 1; epoch < 5; ++epoch)
      CHECK(augmentation(options, 3, epoch, i, 32, 32).flip == (start != (epoch % 2 == 1)));
  }
  CHECK(std::abs(first - 500) < 80);  // deviation 16
}

TEST_CASE("An image's result does not depend on the batch around it") {
  const ImageDataset set = random_set(70);
  const AugmentOptions options{.flip = Flip::random, .crop_pad = 4, .cutout = 6};
  const Tensor table = normalization_table({}, DType::f32);
  std::vector<int32_t> all(70);
  std::iota(all.begin(), all.end(), 0);
  const Tensor x = augment(set.images, all, options, table, 2, 9);
  for (const int32_t i : {0, 33, 69}) {
    const std::vector<int32_t> one{i};
    CHECK(same_bytes(augment(set.images, one, options, table, 2, 9), x.rows(i, i + 1)));
  }
  const Tensor empty = augment(set.images, {}, options, table, 2, 9);
  CHECK(empty.shape() == Shape{0, 32, 32, 3});
}

TEST_CASE("Bad arguments are named") {
  const ImageDataset set = random_set(3, 6, 8);
  const Tensor table = normalization_table({}, DType::f32);
  const auto error = [&](const AugmentOptions& o) {
    return error_of([&] { augment(set.images, kFirst, o, table, 0, 0); });
  };
  CHECK(contains(error({.crop_pad = 6}), "crop_pad 6 is outside [0, 6) for images of 6x8"));
  CHECK(error({.crop_pad = 5}) == "no error");
  CHECK(contains(error({.crop_pad = -1}), "crop_pad -1"));
  CHECK(contains(error({.cutout = -2}), "cutout -2 is negative"));
  for (const int32_t i : {-1, 3}) {
    const std::vector<int32_t> outside{i};
    CHECK(contains(error_of([&] { augment(set.images, outside, {}, table, 0, 0); }),
                   str("index ", i, " is outside the 3")));
  }
  CHECK(contains(error_of([&] {
                   augment(Tensor::zeros({2, 3, 6, 6}, DType::u8), kFirst, {}, table, 0, 0);
                 }),
                 "images must be u8 [n,h,w,3] (images [2,3,6,6] u8 cpu)"));
  CHECK(contains(error_of([&] {
                   augment(set.images, kFirst, {}, Tensor::zeros({256, 3}), 0, 0);
                 }),
                 "table must be [3,256]"));
  CHECK(contains(error_of([&] {
                   augment(set.images, kFirst, {}, Tensor::zeros({3, 256}, DType::i32), 0, 0);
                 }),
                 "i32 is not floating"));
}

}  // namespace ht::data
