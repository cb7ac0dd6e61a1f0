// max_pool2d, avg_pool2d and global_avg_pool2d against hand values and plain double loops.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "core/parallel.h"
#include "ops/ops.h"
#include "tests/error_of.h"

using namespace ht;

namespace {
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Reference {
  std::vector<double> y, dx;
};

// Windows in the order of the definition, everything in double. dy must have as many values as there are outputs.
Reference naive_pool(const Tensor& x, const Pool2dOptions& o, bool max, const Tensor& dy) {
  const int64_t h = x.dim(1), w = x.dim(2), c = x.dim(3), s = o.stride ? o.stride : o.kernel;
  const std::vector<double> in = x.to_vector(), g = dy.to_vector();
  Reference r{{}, std::vector<double>(in.size(), 0.0)};
  for (int64_t n = 0; n < x.dim(0); ++n)
    for (int64_t y0 = -o.padding; y0 + o.kernel <= h + o.padding; y0 += s)
      for (int64_t x0 = -o.padding; x0 + o.kernel <= w + o.padding; x0 += s)
        for (int64_t k = 0; k < c; ++k) {
          double best = -kInf, sum = 0;
          size_t where = in.size();
          const double grad = g[r.y.size()];
          for (int64_t iy = std::max<int64_t>(y0, 0); iy < std::min(y0 + o.kernel, h); ++iy)
            for (int64_t ix = std::max<int64_t>(x0, 0); ix < std::min(x0 + o.kernel, w); ++ix) {
              const size_t i = static_cast<size_t>(((n * h + iy) * w + ix) * c + k);
              sum += in[i];
              if (!max) r.dx[i] += grad / static_cast<double>(o.kernel * o.kernel);
              if (where == in.size() || in[i] > best) best = in[i], where = i;
            }
          if (max) r.dx[where] += grad;
          r.y.push_back(max ? best : sum / static_cast<double>(o.kernel * o.kernel));
        }
  return r;
}

double unit_of(DType t) {
  return t == DType::f64 ? 0x1p-52 : t == DType::f32 ? 0x1p-23 : t == DType::f16 ? 0x1p-10 : 0x1p-7;
}

void check_close(const Tensor& t, const std::vector<double>& expected, double bound) {
  const std::vector<double> got = t.to_vector();
  REQUIRE(got.size() == expected.size());
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) worst = std::max(worst, std::abs(got[i] - expected[i]));
  CHECK(worst <= bound);
}

}  // namespace

TEST_CASE("max_pool2d: hand values, the first maximum takes the gradient") {
  const Var x(Tensor::from({1, 5, 2, 7,  //
                            5, 3, 7, 7,  //
                            0, -1, -4, -2, -1, 0, -3, -3},
                           {1, 4, 4, 1}),
              true);
  const Var y = max_pool2d(x);
  CHECK(y.shape() == Shape{1, 2, 2, 1});
  CHECK(y.value().to_vector() == std::vector<double>{5, 7, 0, -2});
  y.backward(Tensor::from({1, 2, 3, 4}, {1, 2, 2, 1}));
  CHECK(x.grad().to_vector() == std::vector<double>{0, 1, 0, 2, 0, 0, 0, 0, 3, 0, 0, 4, 0, 0, 0, 0});
}

TEST_CASE("max_pool2d: overlapping windows add their gradients") {
  const Var x(Tensor::from({1, 2, 9, 4, 5}, {1, 1, 5, 1}), true);
  // Height 1 with padding 1: rows of padding never win, even against negative values.
  const Var y = max_pool2d(x, {.kernel = 3, .stride = 1, .padding = 1});
  CHECK(y.value().to_vector() == std::vector<double>{2, 9, 9, 9, 5});
  y.backward(Tensor::full({1, 1, 5, 1}, 1));
  CHECK(x.grad().to_vector() == std::vector<double>{0, 1, 3, 0, 1});
  const Var negative = Tensor::full({1, 1, 3, 1}, -5);
  CHECK(max_pool2d(negative, {.kernel = 3, .stride = 1, .padding = 1}).value().to_vector() ==
        std::vector<double>{-5, -5, -5});
}

TEST_CASE("max_pool2d: a NaN in the window wins, wherever it stands") {
  for (DType t : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (int64_t at = 0; at < 4; ++at) {
      for (bool general : {false, true}) {
        const Tensor in = Tensor::from({1, kInf, -2, 3}, {1, 2, 2, 1}, DType::f64);
        in.data<double>()[at] = kNan;
        const Var x(in.to(t), true);
        const Var y = general ? max_pool2d(x, {.kernel = 2, .stride = 1}) : max_pool2d(x);
        CHECK(std::isnan(y.item()));
        y.backward(Tensor::full(y.shape(), 2, t));
        for (int64_t i = 0; i < 4; ++i) CHECK(x.grad().at(i) == (i == at ? 2 : 0));
      }
    }
  }
  const Var infinite = Tensor::full({1, 2, 2, 1}, -kInf);
  CHECK(max_pool2d(infinite).item() == -kInf);
}

TEST_CASE("pools against plain loops: odd sizes, strides, padding, many channels, every type") {
  struct Case {
    Shape shape;
    Pool2dOptions options;
  };
  const Case cases[] = {
      {{2, 8, 8, 64}, {}},
      {{3, 7, 5, 3}, {}},
      {{1, 2, 2, 1}, {}},
      {{2, 9, 11, 5}, {.kernel = 3, .stride = 2, .padding = 1}},
      {{2, 6, 5, 7}, {.kernel = 3, .stride = 1, .padding = 1}},
      {{1, 7, 7, 300}, {.kernel = 2, .stride = 2}},  // more channels than one run
      {{1, 5, 6, 300}, {.kernel = 3, .stride = 2}},
      {{2, 8, 7, 2}, {.kernel = 2, .stride = 3}},
      {{1, 4, 4, 2}, {.kernel = 4, .stride = 1, .padding = 2}},
      {{1, 3, 3, 2}, {.kernel = 1}},
      {{1, 5, 5, 1}, {.kernel = 5}},
      {{33, 4, 4, 256}, {}},
  };
  uint64_t stream = 0;
  for (const Case& c : cases) {
    const Tensor x64 = Tensor::uniform(c.shape, {1, ++stream}, -1, 1, DType::f64);
    for (DType t : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      for (bool max : {true, false}) {
        const auto pool = max ? max_pool2d : avg_pool2d;
        const Var x(x64.to(t), true);
        const Var y = pool(x, c.options);
        const Tensor dy = Tensor::uniform(y.shape(), {2, stream}, -1, 1, t);
        y.backward(dy);
        CHECK(y.dtype() == t);
        const Reference expected = naive_pool(x.value(), c.options, max, dy);
        check_close(y.value(), expected.y, max ? 0 : unit_of(t));
        // Up to kernel^2 windows of size <= 1 add up in one pixel, then one rounding.
        check_close(x.grad(), expected.dx, 2 * static_cast<double>(c.options.kernel * c.options.kernel) * unit_of(t));
      }
    }
  }
}

TEST_CASE("pools: the same bits for every thread count") {
  const int before = num_threads();
  const Tensor x0 = Tensor::uniform({5, 13, 12, 37}, {3, 0}, -1, 1);
  for (const Pool2dOptions& o : {Pool2dOptions{}, Pool2dOptions{.kernel = 3, .stride = 2, .padding = 1}}) {
    std::vector<double> y[2], dx[2];
    for (int k = 0; k < 2; ++k) {
      set_num_threads(k ? 7 : 1);
      const Var x(x0, true);
      const Var z = avg_pool2d(max_pool2d(x, o), o), g = global_avg_pool2d(z);
      g.backward(Tensor::full(g.shape(), 1));
      y[k] = g.value().to_vector(), dx[k] = x.grad().to_vector();
    }
    CHECK(y[0] == y[1]);
    CHECK(dx[0] == dx[1]);
  }
  set_num_threads(before);
}

TEST_CASE("avg_pool2d: padding counts as zeros, sums are FP32") {
  const Var x(Tensor::full({1, 2, 2, 1}, 4), true);
  const Var y = avg_pool2d(x, {.kernel = 2, .stride = 2, .padding = 1});
  CHECK(y.value().to_vector() == std::vector<double>{1, 1, 1, 1});
  y.backward(Tensor::from({1, 2, 3, 4}, {1, 2, 2, 1}));
  CHECK(x.grad().to_vector() == std::vector<double>{0.25, 0.5, 0.75, 1});
  // 64 x 64 half ones sum to 4096, where a half accumulator would stop at 2048; 60000 + 60000 would overflow.
  CHECK(avg_pool2d(Tensor::full({1, 64, 64, 1}, 1, DType::f16), {.kernel = 64}).item() == 1);
  CHECK(avg_pool2d(Tensor::full({1, 2, 2, 1}, 60000, DType::f16)).item() == 60000);
}

TEST_CASE("global_avg_pool2d: hand values, types, many pixels") {
  const Var x(Tensor::from({1, 10, 2, 20, 3, 30, 4, 40, 5, 50, 6, 60}, {1, 2, 3, 2}), true);
  const Var y = global_avg_pool2d(x);
  CHECK(y.shape() == Shape{1, 1, 1, 2});
  CHECK(y.value().to_vector() == std::vector<double>{3.5, 35});
  y.backward(Tensor::from({6, 12}, {1, 1, 1, 2}));
  CHECK(x.grad().to_vector() == std::vector<double>{1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2});
  for (DType t : {DType::f16, DType::bf16}) {
    const Var half(Tensor::full({3, 64, 64, 300}, 1, t), true);
    const Var z = global_avg_pool2d(half);
    CHECK(z.value().to_vector() == std::vector<double>(900, 1.0));
    z.backward(Tensor::full(z.shape(), 4096, t));
    CHECK(half.grad().dtype() == t);
    CHECK(half.grad().to_vector() == std::vector<double>(static_cast<size_t>(half.grad().numel()), 1.0));
  }
  // 0.1 over 256 x 256 pixels in FP32: the mean keeps 6 digits.
  CHECK(global_avg_pool2d(Tensor::full({1, 256, 256, 1}, 0.1)).item() == doctest::Approx(0.1).epsilon(1e-6));
}

TEST_CASE("pools: an empty batch and zero channels pass through") {
  for (const Shape& shape : {Shape{0, 4, 4, 3}, Shape{2, 4, 4, 0}}) {
    for (int which = 0; which < 3; ++which) {
      const Var x(Tensor::zeros(shape), true);
      const Var y = which == 0 ? max_pool2d(x) : which == 1 ? avg_pool2d(x) : global_avg_pool2d(x);
      CHECK(y.shape() == shape.with(1, which == 2 ? 1 : 2).with(2, which == 2 ? 1 : 2));
      y.backward(Tensor::zeros(y.shape()));
      CHECK(x.grad().shape() == shape);
    }
  }
}

TEST_CASE("pools: clear errors") {
  const Var x = Tensor::zeros({1, 4, 5, 2});
  CHECK(error_of([&] {
          max_pool2d(Tensor::zeros({4, 5}));
        }) == "max_pool2d: x must be [n, h, w, c], not of rank 2 (x [4,5] f32 cpu)");
  CHECK(error_of([&] {
          avg_pool2d(Tensor::zeros({1, 4, 4, 1}, DType::i32));
        }) == "avg_pool2d: x must be floating (x [1,4,4,1] i32 cpu)");
  CHECK(error_of([&] { max_pool2d(x, {.kernel = 5}); }) ==
        "max_pool2d: the window 5x5 is larger than the padded input 4x5 (x [1,4,5,2] f32 cpu)");
  CHECK(error_of([&] { avg_pool2d(x, {.kernel = 3, .padding = 2}); }) ==
        "avg_pool2d: padding 2 must be in [0, kernel / 2 = 1] (x [1,4,5,2] f32 cpu)");
  CHECK(error_of([&] { avg_pool2d(x, {.kernel = 0}); }).find("kernel 0 must be in [1, ") != std::string::npos);
  CHECK(error_of([&] { avg_pool2d(x, {.kernel = 2, .stride = -1}); }).find("stride -1 must be in") !=
        std::string::npos);
  const int64_t huge = std::numeric_limits<int64_t>::max();
  CHECK(error_of([&] { max_pool2d(x, {.kernel = huge, .padding = huge / 2}); }).find("kernel 9223") !=
        std::string::npos);
  CHECK(error_of([&] {
          max_pool2d(Tensor::zeros({1, 0, 5, 2}), {.kernel = 2, .padding = 1});
        }) == "max_pool2d: x has no pixels (x [1,0,5,2] f32 cpu)");
  CHECK(error_of([&] {
          global_avg_pool2d(Tensor::zeros({1, 0, 5, 2}));
        }) == "global_avg_pool2d: x has no pixels (x [1,0,5,2] f32 cpu)");
  CHECK(error_of([&] { global_avg_pool2d(Tensor::zeros({5, 2})); }).find("not of rank 2") != std::string::npos);
}

TEST_CASE("max_pool2d: writing to x between forward and backward is an error") {
  const Var x(Tensor::zeros({1, 2, 2, 1}), true);
  const Var y = max_pool2d(x);
  x.value().fill_(1);
  CHECK(error_of([&] { y.backward(); }).find("backward of max_pool2d: a saved tensor was written after forward") == 0);
}
