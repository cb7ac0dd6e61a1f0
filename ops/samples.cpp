#include "ops/samples.h"

namespace ht {

Tensor sample_uniform(const Shape& shape, uint64_t stream, double low, double high) {
  return Tensor::uniform(shape, {2024, stream}, low, high, DType::f64);
}

Tensor sample_signed(const Shape& shape, uint64_t stream, double low, double high) {
  const Tensor t = sample_uniform(shape, stream, low, high);
  const PhiloxStream signs{2025, stream};
  for (int64_t i = 0; i < t.numel(); ++i)
    if (signs.bits(static_cast<uint64_t>(i)) & 1) t.data<double>()[i] *= -1;
  return t;
}

std::vector<Sample> pointwise_samples(Var (*f)(const Var&), double low, double high, bool both_signs) {
  std::vector<Sample> samples;
  uint64_t stream = 0;
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{7}, Shape{3, 5}, Shape{1, 4, 3, 2}, Shape{0, 3}}) {
    const Tensor x = both_signs ? sample_signed(shape, stream, low, high) : sample_uniform(shape, stream, low, high);
    samples.push_back({str("x ", shape), {x}, [f](std::span<const Var> in) { return f(in[0]); }});
    ++stream;
  }
  return samples;
}

std::vector<Sample> binary_samples(Var (*f)(const Var&, const Var&), double low, double high) {
  const std::pair<Shape, Shape> pairs[] = {
      {{}, {}},
      {{7}, {7}},
      {{3, 5}, {3, 5}},
      {{3, 5}, {5}},
      {{1}, {3, 5}},
      {{}, {2, 3}},
      {{3, 1}, {1, 5}},
      {{3, 5}, {3, 1}},
      {{2, 1, 3}, {4, 1}},
      {{2, 3, 1, 2}, {3, 4, 1}},
      {{1, 2, 3}, {4, 1, 1}},
      {{0, 3}, {3}},
  };
  std::vector<Sample> samples;
  uint64_t stream = 100;
  for (const auto& [a, b] : pairs) {
    samples.push_back({str("a ", a, ", b ", b),
                       {sample_signed(a, stream, low, high), sample_signed(b, stream + 1, low, high)},
                       [f](std::span<const Var> in) { return f(in[0], in[1]); }});
    stream += 2;
  }
  samples.push_back({"x used twice", {sample_signed({3, 5}, stream, low, high)}, [f](std::span<const Var> in) {
                       return f(in[0], in[0]);
                     }});
  return samples;
}

std::vector<Sample> axis_samples(Var (*f)(const Var&, int)) {
  std::vector<Sample> samples;
  uint64_t stream = 200;
  for (const auto& [shape, axis] :
       {std::pair{Shape{7}, 0}, std::pair{Shape{3, 5}, -1}, std::pair{Shape{3, 5}, 0}, std::pair{Shape{1, 4, 3}, 1},
        std::pair{Shape{2, 3, 37}, 1}, std::pair{Shape{3, 1}, 1}, std::pair{Shape{0, 3}, 1}})
    samples.push_back({str("x ", shape, " axis ", axis),
                       {sample_signed(shape, stream++, 0.1, 3)},
                       [f, axis = axis](std::span<const Var> in) { return f(in[0], axis); }});
  return samples;
}

Tensor sample_labels(int64_t n, int64_t classes, uint64_t stream) {
  const Tensor labels = Tensor::empty({n}, DType::i64);
  const PhiloxStream draw{2026, stream};
  for (int64_t i = 0; i < n; ++i)
    labels.data<int64_t>()[i] = draw.below(static_cast<uint64_t>(i), static_cast<uint32_t>(classes));
  return labels;
}

}  // namespace ht
