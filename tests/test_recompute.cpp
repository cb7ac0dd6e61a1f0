// MemoryMode::low: inputs that their own op can make again are dropped after forward and restored before backward.
#include <doctest/doctest.h>

#include "core/allocator.h"
#include "core/tuning.h"
#include "models/vgg.h"
#include "ops/ops.h"
#include "tests/cuda_test.h"

using namespace ht;

namespace {
struct LowMemory {
  LowMemory() { set_memory_mode(MemoryMode::low); }
  ~LowMemory() { set_memory_mode(MemoryMode::speed); }
};

struct Counts {
  int kept = 0, recomputed = 0;
} counts;

Tensor squared(const Tensor& x) {
  const Tensor y = Tensor::empty_like(x);
  for (int64_t i = 0; i < x.numel(); ++i) y.data<double>()[i] = x.at(i) * x.at(i);
  return y;
}

struct Square final : Op {
  static std::vector<Sample> no_samples() { return {}; }
  const OpInfo& info() const override {
    static const OpInfo info{"square_for_test", AmpTag::leave, "a test's", no_samples};
    return info;
  }
  TensorSpec infer(Inputs in) const override { return in[0].spec(); }
  Tensor forward(Context&, Inputs in, const TensorSpec&) override {
    x = in[0];
    within = in[0].clone();
    ++counts.kept;
    return squared(in[0]);
  }
  Grads backward(Context&, const Tensor& dy, const std::vector<bool>&) override {
    const Tensor dx = Tensor::empty_like(*x);
    for (int64_t i = 0; i < dx.numel(); ++i) dx.data<double>()[i] = 2 * x->at(i) * dy.at(i);
    return {dx};
  }
  bool recomputes() const override { return true; }
  Tensor recompute(Context&) override {
    ++counts.recomputed;
    return squared(within);
  }
  bool drop_input(size_t) override {
    x = {};
    --counts.kept;
    return true;
  }
  void restore_input(size_t, const Tensor& input) override {
    x = input;
    ++counts.kept;
  }
  Saved x;
  Tensor within;  // what the output can be made from again, as a batch norm's input inside a fused op
};

Var eighth_power(const Var& x) { return apply(Square{}, {apply(Square{}, {apply(Square{}, {x})})}); }
}  // namespace

TEST_CASE("low memory: only the leaf's op keeps its input; gradients are the same, once and again") {
  const Tensor values = Tensor::from({1, -2, 0.5}, {3}).to(DType::f64);
  for (const bool low : {false, true}) {
    counts = {};
    if (low) set_memory_mode(MemoryMode::low);
    const Var x(values, true), y = sum(eighth_power(x));
    set_memory_mode(MemoryMode::speed);  // what was recorded counts
    CHECK(counts.kept == (low ? 1 : 3));
    for (int walk = 1; walk <= 2; ++walk) {
      y.backward({}, true);
      CHECK(x.grad().to_vector() == std::vector<double>{8.0 * walk, -1024.0 * walk, 0.0625 * walk});
      CHECK(counts.kept == (low ? 1 : 3));
      CHECK(counts.recomputed == (low ? 2 * walk : 0));
    }
  }
}

TEST_CASE("low memory: nothing is dropped where no gradient is recorded") {
  const LowMemory low;
  const no_grad guard;
  counts = {};
  eighth_power(Tensor::from({2}, {1}).to(DType::f64));
  CHECK(counts.kept == 3);
}

TEST_CASE("cuda low memory: a network's gradients bit for bit, with less memory") {
  HT_NEEDS_CUDA();
  const Device gpu = Device::cuda();
  set_deterministic(true);
  const Tensor x = Tensor::normal({64, 32, 32, 3}, {5, 1}).to(gpu);
  std::vector<int64_t> labels(64);
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<int64_t>(i % 10);
  const Tensor y = Tensor::of<int64_t>(labels, {64}).to(gpu);
  const auto run = [&](size_t& peak) {
    manual_seed(3);
    nn::Sequential model = models::vgg16({.width = 0.25});
    model.to(gpu);
    cross_entropy(model(x), y).backward();  // workspaces grow
    model.zero_grad();
    reset_peak_memory(gpu);
    const size_t before = memory_stats(gpu).peak;
    cross_entropy(model(x), y).backward();
    peak = memory_stats(gpu).peak - before;
    std::vector<std::vector<double>> gradients;
    for (const Var& p : model.parameters()) gradients.push_back(p.grad().to_vector());
    return gradients;
  };
  size_t usual = 0, less = 0;
  const auto expected = run(usual);
  const LowMemory low;
  CHECK(run(less) == expected);
  CHECK(less < usual * 9 / 10);
  set_deterministic(false);
}
