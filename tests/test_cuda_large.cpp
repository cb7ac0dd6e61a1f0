// Tensors of more than 2^31 elements on CUDA: what a 32-bit index would get wrong shows at the far end.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/allocator.h"
#include "ops/ops.h"
#include "tests/cuda_test.h"

using namespace ht;

namespace {
constexpr Device kGpu = Device::cuda();

// Gives the memory of a test back, so that the next one finds it.
struct Cleanup {
  ~Cleanup() { empty_cache(kGpu); }
};

// A matrix of small whole numbers, a % row period + step * (b % column period): exact in every dtype, different at
// every place, and made on the device by a broadcast sum.
struct Pattern {
  int64_t rows, columns;
  int64_t row_period = 7, column_period = 5, step = 8;

  double at(int64_t i) const {
    return static_cast<double>(i / columns % row_period + step * (i % columns % column_period));
  }
  Var make(DType dtype) const {
    std::vector<double> r(static_cast<size_t>(rows)), c(static_cast<size_t>(columns));
    for (size_t i = 0; i < r.size(); ++i) r[i] = static_cast<double>(static_cast<int64_t>(i) % row_period);
    for (size_t i = 0; i < c.size(); ++i) c[i] = static_cast<double>(step * (static_cast<int64_t>(i) % column_period));
    const Tensor column = Tensor::from(r, {rows, 1}, dtype).to(kGpu),
                 row = Tensor::from(c, {1, columns}, dtype).to(kGpu);
    return add(column, row);
  }
};

constexpr Pattern kOdd{131'075, 16'385};  // 2^31 + 180'227 elements; the rows are 7 * 18'725, the columns 5 * 3'277
constexpr Pattern kWide{32'769, 65'536};  // 2^31 + 65'536: images of 32 x 32 pixels and 64 channels
Shape odd_images() { return {kOdd.rows, 29, 113, 5}; }
Shape wide_images() { return {kWide.rows, 32, 32, 64}; }

// The largest value of kWide in a 2x2 window of its images, and the first place that has it.
double best_of_window(int64_t image, int64_t oy, int64_t ox, int64_t c, int64_t& at) {
  double best = -1;
  for (int64_t p = 0; p < 4; ++p) {
    const int64_t i = ((image * 32 + 2 * oy + p / 2) * 32 + 2 * ox + p % 2) * 64 + c;
    if (kWide.at(i) > best) best = kWide.at(i), at = i;
  }
  return best;
}

// Compares t with what is expected at a flat index: 2^16 elements at the beginning, around 2^31 and at the end.
void check_values(const Tensor& t, const std::function<double(int64_t)>& expected, double tolerance = 0) {
  constexpr int64_t kWindow = 1 << 16, kEdge = int64_t{1} << 31;
  const int64_t n = t.numel(), window = std::min(kWindow, n);
  const Tensor flat = t.view({n});
  for (const int64_t begin : {int64_t{0}, std::clamp<int64_t>(kEdge - window / 2, 0, n - window), n - window}) {
    const std::vector<double> got = flat.rows(begin, begin + window).to(Device::cpu()).to_vector();
    int64_t wrong = 0, first = -1;
    for (int64_t i = 0; i < window; ++i)
      if (!(std::abs(got[static_cast<size_t>(i)] - expected(begin + i)) <= tolerance) && wrong++ == 0)
        first = begin + i;
    CHECK_MESSAGE(wrong == 0, wrong, " of ", window, " elements from ", begin, " on are wrong, the first at ", first,
                  ": ", first < 0 ? 0.0 : got[static_cast<size_t>(first - begin)], " for ",
                  first < 0 ? 0.0 : expected(first));
  }
}

// Leaves NaNs in the memory that the next tensor of this size is likely to get.
void poison(int64_t n, DType dtype) { Tensor::full({n}, NAN, dtype, kGpu); }
}  // namespace

TEST_CASE("cuda, large: broadcast and plain sums, relu and its gradient") {
  HT_NEEDS_GPU_MEMORY(30);
  const Cleanup cleanup;
  Tensor x, shifted;
  {
    const no_grad guard;
    x = kOdd.make(DType::f16).value();
    REQUIRE(x.numel() > int64_t{1} << 31);
    check_values(x, [](int64_t i) { return kOdd.at(i); });
    poison(x.numel(), DType::f16);
    check_values(add(x, x).value(), [](int64_t i) { return 2 * kOdd.at(i); });
    shifted = sub(x, Tensor::full({}, 20, DType::f16, kGpu)).value();
  }
  poison(x.numel(), DType::f16);
  const Var leaf(shifted, true), y = relu(leaf);
  check_values(y.value(), [](int64_t i) { return std::max(kOdd.at(i) - 20, 0.0); });
  y.backward(x);
  check_values(leaf.grad(), [](int64_t i) { return kOdd.at(i) > 20 ? kOdd.at(i) : 0; });
}

TEST_CASE("cuda, large: copies, casts and fills") {
  HT_NEEDS_GPU_MEMORY(30);
  const Cleanup cleanup;
  const no_grad guard;
  const auto same = [](int64_t i) { return kOdd.at(i); };
  Tensor x = kOdd.make(DType::f16).value();
  const int64_t n = x.numel();
  poison(n, DType::f16);
  check_values(x.clone(), same);
  check_values(cast(x, DType::f32).value(), same);
  const Tensor bytes = x.to(DType::u8);
  check_values(bytes, same);
  check_values(bytes.clone(), same);
  poison(n, DType::f16);
  check_values(bytes.to(DType::f16), same);
  x.fill_(3);
  check_values(x, [](int64_t) { return 3.0; });
  bytes.fill_(200);
  check_values(bytes, [](int64_t) { return 200.0; });
  x.zero_();
  check_values(x, [](int64_t) { return 0.0; });
}

TEST_CASE("cuda, large: sums and means") {
  HT_NEEDS_GPU_MEMORY(30);
  const Cleanup cleanup;
  const Var x(kOdd.make(DType::f16).value(), true);
  // Whole periods lie in each row and column, so that the means are whole numbers: 3 of the rows' part, 16 of the
  // other.
  const Var rows = mean(x, {.axes = {1}}), columns = mean(x, {.axes = {0}}), all = mean(x);
  check_values(rows.value(), [](int64_t i) { return static_cast<double>(i % 7 + 16); });
  check_values(columns.value(), [](int64_t i) { return static_cast<double>(3 + 8 * (i % 5)); });
  CHECK(all.item() == 19);
  sum(columns).backward();
  // 1 / 131'075 in f16, which is subnormal there.
  const double share = Tensor::from({1 / static_cast<double>(kOdd.rows)}, {1}, DType::f16).item();
  check_values(
      x.grad(), [share](int64_t) { return share; }, 1e-7);

  const no_grad guard;
  const Var wide = cast(x, DType::f32);
  CHECK(sum(wide).item() == doctest::Approx(19.0 * static_cast<double>(x.value().numel())).epsilon(1e-6));
}

TEST_CASE("cuda, large: transpose, slice and cat") {
  HT_NEEDS_GPU_MEMORY(30);
  const Cleanup cleanup;
  const no_grad guard;
  const Var x = kOdd.make(DType::f16);
  const int64_t n = x.value().numel();
  poison(n, DType::f16);
  check_values(transpose(x, 0, 1).value(),
               [](int64_t i) { return kOdd.at(i % kOdd.rows * kOdd.columns + i / kOdd.rows); });
  poison(n, DType::f16);
  const int64_t middle = kOdd.rows / 5;  // [5, middle, columns] -> [columns, middle, 5]
  check_values(transpose(reshape(x, {5, middle, kOdd.columns}), 0, 2).value(), [middle](int64_t i) {
    const int64_t a = i % 5, m = i / 5 % middle, c = i / 5 / middle;
    return kOdd.at((a * middle + m) * kOdd.columns + c);
  });
  const auto same = [](int64_t i) { return kOdd.at(i); };
  for (const int axis : {0, 1}) {
    const int64_t size = x.shape()[axis], cut = size * 3 / 5;
    const Var low = slice(x, axis, 0, cut), high = slice(x, axis, cut, size);
    poison(n, DType::f16);
    check_values(cat({low, high}, axis).value(), same);
  }
  // Rows of more than 2^31 bytes.
  const Var two = reshape(kWide.make(DType::f16), {2, kWide.rows * kWide.columns / 2});
  const int64_t length = two.shape()[1];
  check_values(slice(two, 1, 5, length).value(),
               [length](int64_t i) { return kWide.at(i / (length - 5) * length + i % (length - 5) + 5); });
}

TEST_CASE("cuda, large: max_pool2d") {
  HT_NEEDS_GPU_MEMORY(30);
  const Cleanup cleanup;
  {  // channels that fill no 16 bytes; all pixels of an image's channel are equal, so that the first of a window wins
    Var x(kOdd.make(DType::f16).value().view(odd_images()), true);
    const Var y = max_pool2d(x);
    check_values(y.value(), [](int64_t i) { return static_cast<double>(i / (14 * 56 * 5) % 7 + 8 * (i % 5)); });
    y.backward(Tensor::full(y.shape(), 1, DType::f16, kGpu));
    check_values(x.grad(), [](int64_t i) {
      const int64_t column = i / 5 % 113, row = i / 5 / 113 % 29;
      return row % 2 == 0 && column % 2 == 0 && row < 28 && column < 112 ? 1.0 : 0.0;
    });
  }
  Var x(kWide.make(DType::f16).value().view(wide_images()), true);
  const Var y = max_pool2d(x);
  check_values(y.value(), [&](int64_t i) {
    int64_t at = -1;
    return best_of_window(i / 64 / 16 / 16, i / 64 / 16 % 16, i / 64 % 16, i % 64, at);
  });
  y.backward(Tensor::full(y.shape(), 1, DType::f16, kGpu));
  check_values(x.grad(), [&](int64_t i) {
    int64_t at = -1;
    best_of_window(i / 64 / 32 / 32, i / 64 / 32 % 32 / 2, i / 64 % 32 / 2, i % 64, at);
    return at == i ? 1.0 : 0.0;
  });
}

TEST_CASE("cuda, large: batch_norm, and with ReLU and pool") {
  HT_NEEDS_GPU_MEMORY(30);
  const Cleanup cleanup;
  constexpr int64_t kChannels = 64, kPixels = 1024;
  constexpr Pattern kDy{kWide.rows, kWide.columns, 3, 1, 0};  // the image's number % 3
  Var x(kWide.make(DType::f16).value().view(wide_images()), true);
  Var gamma(Tensor::full({kChannels}, 2, DType::f32, kGpu), true),
      beta(Tensor::full({kChannels}, 1, DType::f32, kGpu), true);

  // Sums over the images and the pixels of x = a + b, a the image's part and b the pixel's.
  const double images = static_cast<double>(kWide.rows), values = images * kPixels;
  double a1 = 0, a2 = 0, d1 = 0, da = 0;
  for (int64_t i = 0; i < kWide.rows; ++i) {
    const double a = static_cast<double>(i % 7), d = static_cast<double>(i % 3);
    a1 += a, a2 += a * a, d1 += d, da += d * a;
  }
  std::vector<double> mean(kChannels), invstd(kChannels), projection(kChannels);
  for (int64_t c = 0; c < kChannels; ++c) {
    double b1 = 0, b2 = 0;
    for (int64_t p = 0; p < kPixels; ++p) {
      const double b = kWide.at(p * kChannels + c);
      b1 += b, b2 += b * b;
    }
    const size_t k = static_cast<size_t>(c);
    mean[k] = a1 / images + b1 / kPixels;
    invstd[k] = 1 / std::sqrt((a2 * kPixels + 2 * a1 * b1 + b2 * images) / values - mean[k] * mean[k] + 1e-5);
    projection[k] = (da * kPixels + d1 * b1 - mean[k] * d1 * kPixels) * invstd[k];  // sum of dy xhat
  }
  const auto normalised = [&](double v, int64_t i) {
    const size_t k = static_cast<size_t>(i % kChannels);
    return (v - mean[k]) * invstd[k];
  };
  const auto xhat = [&](int64_t i) { return normalised(kWide.at(i), i); };
  {
    const no_grad guard;
    check_values(
        bn_relu_pool(x, gamma, beta, {}).value(),
        [&](int64_t i) {
          int64_t at;
          const double best = best_of_window(i / 64 / 16 / 16, i / 64 / 16 % 16, i / 64 % 16, i % 64, at);
          return std::max(2 * normalised(best, i) + 1, 0.0);
        },
        5e-3);
  }

  const Var y = batch_norm(x, gamma, beta, {});
  check_values(
      y.value(), [&](int64_t i) { return 2 * xhat(i) + 1; }, 5e-3);
  y.backward(kDy.make(DType::f16).value().view(wide_images()));
  check_values(
      x.grad(),
      [&](int64_t i) {
        const size_t k = static_cast<size_t>(i % kChannels);
        return 2 * invstd[k] * (kDy.at(i) - d1 * kPixels / values - xhat(i) * projection[k] / values);
      },
      1e-3);
  check_values(
      beta.grad(), [&](int64_t) { return d1 * kPixels; }, 1e-4 * d1 * kPixels);
  check_values(
      gamma.grad(), [&](int64_t i) { return projection[static_cast<size_t>(i)]; }, 1e-4 * d1 * kPixels);
}

TEST_CASE("cuda, large: conv2d and linear go through in parts") {
  HT_NEEDS_GPU_MEMORY(40);
  const Cleanup cleanup;
  const auto close = [](const Tensor& a, const Tensor& b, double bound) {
    const std::vector<double> u = a.to_vector(), v = b.to_vector();
    REQUIRE(u.size() == v.size());
    double difference = 0, norm = 0;
    for (size_t i = 0; i < u.size(); ++i) difference += (u[i] - v[i]) * (u[i] - v[i]), norm += v[i] * v[i];
    CHECK(norm > 0);
    CHECK_MESSAGE(std::sqrt(difference / norm) <= bound, "relative L2 ", std::sqrt(difference / norm));
  };
  const int64_t n = kWide.rows, tail = 4;  // images compared with a call of their own
  Tensor data;
  {
    const no_grad guard;
    data = scale(kWide.make(DType::f16), 1.0 / 64).value().view(wide_images());
  }
  const Tensor weight = Tensor::uniform({8, 3, 3, 64}, {1, 1}, -0.1, 0.1, DType::f16).to(kGpu);
  Var x(data, true), w(weight, true);
  const Var y = conv2d(x, w, {.padding = 1});
  Var x_tail(data.rows(n - tail, n).clone(), true), w_tail(weight, true);
  const Var y_tail = conv2d(x_tail, w_tail, {.padding = 1});
  close(y.value().rows(n - tail, n), y_tail.value(), 2e-3);

  // dy is 0 but for the last images: their gradients are all there is.
  const Tensor dy = Tensor::zeros(y.shape(), DType::f16, kGpu);
  const Tensor dy_tail = Tensor::uniform(y_tail.shape(), {1, 2}, -1, 1, DType::f16).to(kGpu);
  dy.rows(n - tail, n).copy_(dy_tail);
  y.backward(dy);
  y_tail.backward(dy_tail);
  close(x.grad().rows(n - tail, n), x_tail.grad(), 2e-3);
  check_values(x.grad().rows(0, tail), [](int64_t) { return 0.0; });
  close(w.grad(), w_tail.grad(), 2e-3);

  const no_grad guard;
  const Tensor matrix = data.view({n, kWide.columns});
  const Tensor v = Tensor::uniform({8, kWide.columns}, {1, 3}, -0.01, 0.01, DType::f16).to(kGpu);
  const Var product = linear(matrix, v);
  close(product.value().rows(n - tail, n), linear(matrix.rows(n - tail, n).clone(), v).value(), 2e-3);
}
