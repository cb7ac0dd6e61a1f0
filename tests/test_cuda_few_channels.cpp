// Convolutions of few input channels in half types: the own kernels against the CPU, in every shape that they differ
// by.
#include <doctest/doctest.h>

#include "core/tuning.h"
#include "ops/ops.h"
#include "ops/registry.h"
#include "ops/samples.h"
#include "tests/cuda_compare.h"

using namespace ht;

namespace {
struct Case {
  Shape x, weight;
  Conv2dOptions options;
};
// Taps 27, 9, 49, 36, 8, 12, 54; output channels in one group of 64, a part of one, and more; pixels that fill no tile.
const std::vector<Case> kCases{
    {{3, 32, 32, 3}, {64, 3, 3, 3}, {.padding = 1}},
    {{2, 9, 11, 1}, {8, 3, 3, 1}, {}},
    {{1, 28, 28, 1}, {16, 7, 7, 1}, {.stride = 2, .padding = 3}},
    {{5, 13, 6, 4}, {72, 3, 3, 4}, {.padding = 2, .dilation = 2}},
    {{1, 3, 2, 2}, {136, 2, 2, 2}, {.padding = 1}},
    {{7, 17, 5, 6}, {24, 1, 2, 6}, {.stride = 3}},
    {{2, 12, 12, 6}, {40, 3, 3, 6}, {.stride = 2, .padding = 1}},
};

void compare(DType dtype, double bound) {
  HT_NEEDS_CUDA();
  for (const Case& c : kCases)
    for (const bool bias : {false, true}) {
      INFO("x " << str(c.x) << ", weight " << str(c.weight) << (bias ? ", bias " : " ") << name_of(dtype));
      Sample s{"", {sample_signed(c.x, 1, 0.1, 1), sample_signed(c.weight, 2, 0.1, 1)}, {}};
      if (bias) s.inputs.push_back(sample_signed({c.weight[0]}, 3, 0.1, 1));
      s.function = [&](std::span<const Var> v) {
        return v.size() > 2 ? conv2d(v[0], v[1], v[2], c.options) : conv2d(v[0], v[1], c.options);
      };
      compare_with_cpu(conv2d_info, s, dtype, bound);
    }
}
}  // namespace

TEST_CASE("cuda few channels: f16") { compare(DType::f16, 2e-3); }
TEST_CASE("cuda few channels: bf16") { compare(DType::bf16, 2e-2); }

TEST_CASE("cuda few channels: deterministic mode gives the same bits each time") {
  HT_NEEDS_CUDA();
  set_deterministic(true);
  const Tensor x = sample_signed({37, 32, 32, 3}, 1, 0.1, 1).to(DType::f16).to(Device::cuda());
  const Tensor w = sample_signed({64, 3, 3, 3}, 2, 0.1, 1).to(DType::f16).to(Device::cuda());
  const auto gradient = [&] {
    const Var weight(w.clone(), true);
    const Var y = conv2d(x, weight, {.padding = 1});
    y.backward(Tensor::uniform(y.shape(), {9, 1}, -1, 1).to(DType::f16).to(Device::cuda()));
    return weight.grad().to_vector();
  };
  const std::vector<double> first = gradient();
  for (int i = 0; i < 3; ++i) CHECK(gradient() == first);
  set_deterministic(false);
}

TEST_CASE("cuda few channels: the sums for a batch norm behind it") {
  HT_NEEDS_CUDA();
  for (const int64_t out : {64, 80}) {
    const auto statistics = [&](DType dtype) {
      const no_grad guard;
      const Device gpu = Device::cuda();
      const RunningStats running{Tensor::zeros({out}, DType::f32, gpu), Tensor::full({out}, 1, DType::f32, gpu), {}};
      const auto input = [&](const Shape& s, uint64_t stream) {
        return sample_uniform(s, stream, -1, 1.5).to(DType::f16).to(dtype).to(gpu);
      };
      conv_bn_relu(input({11, 15, 17, 3}, 1), input({out, 3, 3, 3}, 2), {}, Tensor::full({out}, 1, DType::f32, gpu),
                   Tensor::zeros({out}, DType::f32, gpu), running, {.padding = 1}, {.momentum = 1});
      return std::vector{running.mean.to(Device::cpu()), running.var.to(Device::cpu())};
    };
    const auto expected = statistics(DType::f32), found = statistics(DType::f16);
    CHECK(distance(found[0], expected[0], 1e-2) <= 1e-3);
    CHECK(distance(found[1], expected[1], 1e-2) <= 1e-3);
  }
}

// Where the input needs no gradient the batch norm's input gradient is never in memory.
TEST_CASE(
    "cuda few channels: the weight's gradient behind batch norm and ReLU, with the input's gradient and without") {
  HT_NEEDS_CUDA();
  const Device gpu = Device::cuda();
  for (const DType dtype : {DType::f16, DType::bf16})
    for (const bool training : {true, false})
      for (const int64_t out : {64, 72}) {
        INFO(name_of(dtype) << (training ? " training, " : " evaluation, ") << out);
        const auto gradients = [&](bool wants_input) {
          const RunningStats running{
              Tensor::zeros({out}, DType::f32, gpu), Tensor::full({out}, 2, DType::f32, gpu), {}};
          const Var x(sample_uniform({9, 15, 17, 3}, 1, -1, 1.5).to(dtype).to(gpu), wants_input);
          const Var w(sample_uniform({out, 3, 3, 3}, 2, -1, 1).to(dtype).to(gpu), true);
          const Var gamma(sample_signed({out}, 3, 0.5, 2).to(DType::f32).to(gpu), true);
          const Var beta(sample_uniform({out}, 4, -1, 1).to(DType::f32).to(gpu), true);
          const Var y = conv_bn_relu(x, w, {}, gamma, beta, running, {.padding = 1}, {.training = training});
          y.backward(sample_uniform(y.shape(), 5, 0.5, 1.5).to(dtype).to(gpu));
          return std::vector{w.grad().to(Device::cpu()), gamma.grad().to(Device::cpu()), beta.grad().to(Device::cpu())};
        };
        const auto expected = gradients(true), found = gradients(false);
        const double bound = dtype == DType::f16 ? 2e-3 : 2e-2;  // dy is rounded in either, but not summed in one order
        for (size_t i = 0; i < expected.size(); ++i) CHECK(distance(found[i], expected[i], 0) <= bound);
      }
}
