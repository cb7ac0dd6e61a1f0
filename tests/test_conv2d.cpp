// conv2d against the definition, seven loops in double.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "core/parallel.h"
#include "ops/ops.h"
#include "tests/error_of.h"

using namespace ht;

namespace {
struct Case {
  Shape x, w;  // [n, h, w, in], [out, kh, kw, in]
  Conv2dOptions options = {};
  bool bias = true;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << "x " << c.x << " w " << c.w << " stride " << c.options.stride << " padding " << c.options.padding
             << " dilation " << c.options.dilation << (c.bias ? " bias" : "");
}

struct Results {
  std::vector<double> y, dx, dw, dbias;
};

// Forward and the three gradients by the definition.
Results naive(const Case& c, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& dy, const Shape& out) {
  const std::vector<double> vx = x.to_vector(), vw = w.to_vector(), vb = bias.to_vector(), vdy = dy.to_vector();
  Results r{std::vector<double>(static_cast<size_t>(out.numel())), std::vector<double>(vx.size()),
            std::vector<double>(vw.size()), std::vector<double>(vb.size())};
  const auto at = [](const Shape& s, int64_t i, int64_t j, int64_t k, int64_t l) {
    return static_cast<size_t>(((i * s[1] + j) * s[2] + k) * s[3] + l);
  };
  for (int64_t n = 0; n < out[0]; ++n)
    for (int64_t p = 0; p < out[1]; ++p)
      for (int64_t q = 0; q < out[2]; ++q)
        for (int64_t o = 0; o < out[3]; ++o) {
          const size_t to = at(out, n, p, q, o);
          if (c.bias) r.y[to] = vb[static_cast<size_t>(o)];
          r.dbias[static_cast<size_t>(o)] += vdy[to];
          for (int64_t i = 0; i < c.w[1]; ++i)
            for (int64_t j = 0; j < c.w[2]; ++j) {
              const int64_t h = p * c.options.stride + i * c.options.dilation - c.options.padding;
              const int64_t v = q * c.options.stride + j * c.options.dilation - c.options.padding;
              if (h < 0 || h >= c.x[1] || v < 0 || v >= c.x[2]) continue;
              for (int64_t k = 0; k < c.x[3]; ++k) {
                r.y[to] += vx[at(c.x, n, h, v, k)] * vw[at(c.w, o, i, j, k)];
                r.dx[at(c.x, n, h, v, k)] += vdy[to] * vw[at(c.w, o, i, j, k)];
                r.dw[at(c.w, o, i, j, k)] += vdy[to] * vx[at(c.x, n, h, v, k)];
              }
            }
        }
  return r;
}

double relative_l2(const std::vector<double>& y, const std::vector<double>& expected) {
  REQUIRE(y.size() == expected.size());
  double error = 0, size = 0;
  for (size_t i = 0; i < y.size(); ++i) error += std::pow(y[i] - expected[i], 2), size += std::pow(expected[i], 2);
  return size > 0 ? std::sqrt(error / size) : std::sqrt(error);
}

// One rounding of the result beside exact inputs: half an ulp, and room for FP32 sums.
double bound(DType t) {
  switch (t) {
    case DType::f64:
      return 1e-14;
    case DType::f32:
      return 1e-6;
    case DType::f16:
      return 5e-4;
    default:
      return 4e-3;
  }
}

Tensor draw(const Shape& shape, uint64_t stream, DType dtype) {
  return Tensor::normal(shape, {12, stream}, 0, 1, dtype);
}

struct Run {
  Var x, w, bias, y;
  Tensor dy;
};
Run run(const Case& c, DType t) {
  Run r{Var(draw(c.x, 1, t), true), Var(draw(c.w, 2, t), true), Var(draw({c.w[0]}, 3, t), true), {}, {}};
  r.y = c.bias ? conv2d(r.x, r.w, r.bias, c.options) : conv2d(r.x, r.w, c.options);
  r.dy = draw(r.y.shape(), 4, t);
  r.y.backward(r.dy);
  return r;
}

}  // namespace

TEST_CASE("conv2d: a hand-computed 3x3 convolution") {
  // x is 1 2 3 / 4 5 6 / 7 8 9, the kernel 0 1 0 / 2 3 4 / 0 5 0.
  const Var x(Tensor::from({1, 2, 3, 4, 5, 6, 7, 8, 9}, {1, 3, 3, 1}), true);
  const Var w(Tensor::from({0, 1, 0, 2, 3, 4, 0, 5, 0}, {1, 3, 3, 1}), true);
  const Var bias(Tensor::from({100}, {1}), true);
  CHECK(conv2d(x, w).value().to_vector() == std::vector<double>{2 + 2 * 4 + 3 * 5 + 4 * 6 + 5 * 8});
  const Var y = conv2d(x, w, bias, {.padding = 1});
  CHECK(y.value().to_vector() == std::vector<double>{131, 145, 143, 168, 189, 176, 157, 179, 149});
  y.backward(Tensor::from({1, 0, 0, 0, 0, 0, 0, 0, 2}, {1, 3, 3, 1}));
  CHECK(x.grad().to_vector() == std::vector<double>{3, 4, 0, 5, 0, 2, 0, 4, 6});
  CHECK(w.grad().to_vector() == std::vector<double>{10, 12, 0, 16, 19, 2, 0, 4, 5});
  CHECK(bias.grad().item() == 3);
}

TEST_CASE("conv2d: against the definition, every dtype") {
  const Case cases[] = {
      {{2, 6, 5, 3}, {4, 3, 3, 3}, {.padding = 1}},
      {{1, 1, 1, 1}, {1, 1, 1, 1}},
      {{1, 1, 1, 7}, {5, 3, 3, 7}, {.padding = 1}},
      {{3, 5, 7, 7}, {9, 1, 1, 7}, {}, false},
      {{2, 7, 7, 7}, {5, 1, 1, 7}, {.stride = 2}},
      {{2, 7, 7, 3}, {5, 1, 1, 3}, {.padding = 2}},
      {{2, 9, 8, 5}, {7, 3, 3, 5}, {.stride = 2, .padding = 1}, false},
      {{1, 11, 9, 4}, {3, 3, 3, 4}, {.padding = 2, .dilation = 2}},
      {{2, 12, 13, 3}, {6, 5, 5, 3}, {.stride = 3, .padding = 2}},
      {{1, 10, 11, 3}, {4, 2, 4, 3}, {.stride = 2, .padding = 1, .dilation = 3}},
      {{2, 3, 4, 2}, {3, 5, 5, 2}, {.padding = 3}},   // the kernel is larger than the image
      {{1, 2, 2, 2}, {3, 1, 1, 2}, {.stride = 5}},    // the stride is larger than the image
      {{1, 4, 11, 6}, {2, 1, 7, 6}, {.padding = 3}},  // rectangular
      {{1, 11, 4, 6}, {2, 5, 1, 6}, {.padding = 2}},
      {{3, 16, 16, 3}, {64, 3, 3, 3}, {.padding = 1}},
      {{5, 4, 4, 130}, {140, 3, 3, 130}, {.padding = 1}},  // several segments of taps, several pixel blocks
      {{2, 3, 3, 600}, {20, 3, 3, 600}, {.padding = 1}},   // a tap's channels split in forward
      {{2, 3, 3, 20}, {600, 3, 3, 20}, {.padding = 1}},    // and in the data gradient
      {{2, 5, 5, 300}, {310, 1, 1, 300}, {.stride = 2}},
      {{2, 20, 21, 8}, {8, 3, 3, 8}, {.stride = 2, .padding = 1}},
  };
  for (const Case& c : cases) {
    for (DType t : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      INFO(str(c, " ", name_of(t)));
      const Run r = run(c, t);
      const Results e = naive(c, r.x.value(), r.w.value(), r.bias.value(), r.dy, r.y.shape());
      CHECK(relative_l2(r.y.value().to_vector(), e.y) < bound(t));
      CHECK(relative_l2(r.x.grad().to_vector(), e.dx) < bound(t));
      CHECK(relative_l2(r.w.grad().to_vector(), e.dw) < bound(t));
      CHECK(r.bias.grad().defined() == c.bias);
      if (c.bias) CHECK(relative_l2(r.bias.grad().to_vector(), e.dbias) < bound(t));
    }
  }
}

TEST_CASE("conv2d: one and two threads, and a second run, give the same bits") {
  const int before = num_threads();
  for (const Case& c :
       {Case{{3, 16, 16, 20}, {24, 3, 3, 20}, {.padding = 1}}, Case{{5, 4, 4, 130}, {140, 3, 3, 130}, {}},
        Case{{4, 15, 15, 3}, {8, 5, 5, 3}, {.stride = 2, .padding = 2}}}) {
    for (DType t : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      INFO(str(c, " ", name_of(t)));
      std::vector<Tensor> first;
      for (int threads : {1, 2, 2, 3}) {
        set_num_threads(threads);
        const Run r = run(c, t);
        const std::vector<Tensor> results{r.y.value(), r.x.grad(), r.w.grad(), r.bias.grad()};
        if (first.empty()) first = results;
        for (size_t i = 0; i < results.size(); ++i)
          CHECK(std::memcmp(results[i].data(), first[i].data(), first[i].bytes()) == 0);
      }
    }
  }
  set_num_threads(before);
}

TEST_CASE("conv2d: 16-bit inputs accumulate in FP32") {
  for (DType t : {DType::f16, DType::bf16}) {
    const Var x(Tensor::full({1, 2, 2, 1024}, 1, t), true), w(Tensor::full({1, 2, 2, 1024}, 1, t), true);
    const Var y = conv2d(x, w);
    CHECK(y.item() == 4096);
    const Var image(Tensor::full({1, 64, 64, 1}, 1, t)), kernel(Tensor::full({1, 2, 1, 1}, 1, t), true);
    const Var bias(Tensor::full({1}, 0, t), true);
    conv2d(image, kernel, bias, {.padding = 0}).backward(Tensor::full({1, 63, 64, 1}, 1, t));
    CHECK(kernel.grad().at(0) == 4032);
    CHECK(bias.grad().item() == 4032);
  }
}

TEST_CASE("conv2d: only the gradients that are wanted") {
  const Var x(draw({1, 4, 4, 2}, 1, DType::f32)), w(draw({3, 3, 3, 2}, 2, DType::f32), true);
  const Var bias(draw({3}, 3, DType::f32));
  conv2d(x, w, bias).backward(Tensor::full({1, 2, 2, 3}, 1));
  CHECK(w.grad().defined());
  CHECK(!x.grad().defined());
  CHECK(!bias.grad().defined());
}

TEST_CASE("conv2d: empty batches and channels") {
  for (DType t : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (int64_t kernel : {1, 3}) {
      const Run none = run({{0, 4, 4, 2}, {3, kernel, kernel, 2}, {.padding = kernel / 2}}, t);
      CHECK(none.y.shape() == Shape{0, 4, 4, 3});
      CHECK(none.w.grad().to_vector() == std::vector<double>(static_cast<size_t>(6 * kernel * kernel), 0));
      CHECK(none.bias.grad().to_vector() == std::vector<double>(3, 0));
      const Run thin = run({{1, 2, 2, 0}, {1, kernel, kernel, 0}, {.padding = kernel / 2}}, t);
      CHECK(thin.y.value().to_vector() == std::vector<double>(4, thin.bias.value().item()));
      const Run blind = run({{1, 2, 2, 1}, {0, kernel, kernel, 1}, {.padding = kernel / 2}}, t);
      CHECK(blind.x.grad().to_vector() == std::vector<double>(4, 0));
    }
  }
}

TEST_CASE("conv2d: error texts") {
  const auto error = [](const Tensor& x, const Tensor& w, const Conv2dOptions& o = {}, const Var& bias = {}) {
    return error_of([&] { conv2d(x, w, bias, o); });
  };
  const Tensor x = Tensor::zeros({2, 4, 5, 3}), w = Tensor::zeros({6, 3, 3, 3});
  const std::string args = " (x [2,4,5,3] f32 cpu, weight [6,3,3,3] f32 cpu)";
  CHECK(error(x, Tensor::zeros({6, 3, 3, 4})) ==
        "conv2d: x has 3 channels but weight takes 4 (x [2,4,5,3] f32 cpu, weight [6,3,3,4] f32 cpu)");
  CHECK(error(Tensor::zeros({4, 5, 3}), w) ==
        "conv2d: x has rank 3 but needs 4, [n, h, w, in] (x [4,5,3] f32 cpu, weight [6,3,3,3] f32 cpu)");
  CHECK(error(x, Tensor::zeros({6, 3, 3})) ==
        "conv2d: weight has rank 3 but needs 4, [out, kh, kw, in] (x [2,4,5,3] f32 cpu, weight [6,3,3] f32 cpu)");
  CHECK(error(x, w, {.stride = 0}) == "conv2d: stride is 0 but must be at least 1" + args);
  CHECK(error(x, w, {.padding = -1}) == "conv2d: padding is -1 but must be at least 0" + args);
  CHECK(error(x, w, {.dilation = 0}) == "conv2d: dilation is 0 but must be at least 1" + args);
  CHECK(error(x, w, {.dilation = 2}) ==
        "conv2d: the kernel spans 5x5 but the padded input is 4x5; raise padding (now 0)" + args);
  CHECK(error(x, Tensor::zeros({6, 0, 3, 3})) ==
        "conv2d: the kernel is 0x3 but must be at least 1x1 (x [2,4,5,3] f32 cpu, weight [6,0,3,3] f32 cpu)");
  CHECK(error(x, Tensor::zeros({6, 3, 3, 3}, DType::f16)) ==
        "conv2d: x is f32 but weight is f16; cast() one of them (x [2,4,5,3] f32 cpu, weight [6,3,3,3] f16 cpu)");
  CHECK(error(x, w, {}, Tensor::zeros({5})) ==
        "conv2d: bias must have shape [6] (x [2,4,5,3] f32 cpu, weight [6,3,3,3] f32 cpu, bias [5] f32 cpu)");
  CHECK(error(x, w, {}, Tensor::zeros({6}, DType::bf16)) ==
        "conv2d: x is f32 but bias is bf16; cast() one of them (x [2,4,5,3] f32 cpu, weight [6,3,3,3] f32 cpu, bias "
        "[6] bf16 cpu)");
  CHECK(error(Tensor::zeros({2, 4, 5, 3}, DType::u8), w) ==
        "conv2d: the inputs must be floating; cast() them first (x [2,4,5,3] u8 cpu, weight [6,3,3,3] f32 cpu)");
}
