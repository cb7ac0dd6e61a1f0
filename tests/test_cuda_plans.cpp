// Plans of convolutions and matrix products on CUDA: Tensor Cores where they are allowed, restored from the cache,
// found in every tune mode.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "core/build.h"
#include "core/cudnn_graph.h"
#include "core/tuning.h"
#include "ops/ops.h"
#include "tests/cuda_compare.h"
#include "tests/data_helpers.h"

using namespace ht;

namespace {
// A cache folder of this test's own, and the settings put back, while it lives.
struct Settings : data::TempFolder {
  Settings() { setenv("HALFTONE_CACHE", path.c_str(), 1); }
  ~Settings() {
    unsetenv("HALFTONE_CACHE");
    set_tune_mode(TuneMode::fast);
    set_tf32(false);
    set_workspace_limit(size_t{1} << 30);
  }
  int64_t files() const { return std::distance(std::filesystem::directory_iterator(path), {}); }
};

Tensor random(const Shape& shape, uint64_t stream) { return Tensor::uniform(shape, {21, stream}, -1, 1, DType::f64); }

struct Case {
  Tensor x, w;
  bool is_conv;
  Tensor run(DType dtype, Device device) const {
    const no_grad guard;
    const Var a = x.to(dtype).to(device), b = w.to(dtype).to(device);
    return (is_conv ? conv2d(a, b, {.padding = 1}) : linear(a, b)).value().to(Device::cpu());
  }
};
Case conv_case(int64_t n) { return {random({n, 16, 16, 64}, 1), random({64, 3, 3, 64}, 2), true}; }
Case linear_case(int64_t n) { return {random({n, 512}, 3), random({256, 512}, 4), false}; }

// The plan that the newest problem with these words runs by.
PlanChoice chosen(const std::string& op, const std::string& size) {
  PlanChoice found;
  for (const PlanChoice& c : plan_choices())
    if (c.problem.find(op) != std::string::npos && c.problem.find(size) != std::string::npos) found = c;
  REQUIRE_MESSAGE(!found.problem.empty(), op, ' ', size);
  return found;
}
}  // namespace

TEST_CASE("cuda plans: a convolution's sums a channel are those of its output") {
  HT_NEEDS_CUDA();
  if constexpr (kCudaBuild) {
    const Settings settings;
    const int64_t n = 16, out = 64;
    const Device device = Device::cuda();
    const Tensor x = random({n, 16, 16, 64}, 1).to(DType::f16).to(device);
    const Tensor w = random({out, 3, 3, 64}, 2).to(DType::f16).to(device);
    const Tensor y = Tensor::empty({n, 16, 16, out}, DType::f16, device);
    const Tensor sums = Tensor::zeros({2, out}, DType::f32, device);
    const std::vector<void*> pointers{x.data(), w.data(), y.data(), sums.data(), sums.rows(1, 2).data()};
    int rests = 0;
    const auto form = [&] {
      std::vector<CudnnGraph> graphs(1);
      CudnnGraph& g = graphs[0];
      const int gx = g.tensor(x.shape(), DType::f16), gw = g.tensor(w.shape(), DType::f16);
      const int gy = g.tensor(y.shape(), DType::f16);
      g.convolution(ConvKind::forward, gx, gw, gy, {1, 1, 1});
      const Shape channels{1, 1, 1, out};
      const int sum = g.tensor(channels, DType::f32), squares = g.tensor(channels, DType::f32);
      g.channel_sums(gy, sum, squares);
      return graphs;
    };
    Context& ctx = Context::of(device);
    const auto plan =
        best_plan(ctx, "conv2d forward, sums", n, DType::f16, form, pointers, [&](const CudnnPlan&) { ++rests; });
    CHECK(plan->tensors() == 5);
    CHECK(rests > 0);  // was timed with the plans
    plan->execute(ctx.cuda().main, device.index, pointers);
    const std::vector<double> values = y.to_vector(), found = sums.to_vector();
    std::vector<double> expected(2 * out);
    for (size_t i = 0; i < values.size(); ++i) {
      expected[i % out] += values[i];
      expected[out + i % out] += values[i] * values[i];
    }
    for (size_t c = 0; c < out; ++c) {
      CHECK(found[c] == doctest::Approx(expected[c]).epsilon(1e-3).scale(std::sqrt(expected[out + c])));
      CHECK(found[out + c] == doctest::Approx(expected[out + c]).epsilon(1e-3));
    }
  }
}

// The op takes the sums where the search finds them faster: the statistics are the same either way.
TEST_CASE("cuda plans: conv_bn_relu with the convolution's sums and without") {
  HT_NEEDS_CUDA();
  const Settings settings;
  const Device device = Device::cuda();
  const auto statistics = [&](TuneMode mode, DType dtype) {
    set_tune_mode(mode);
    const no_grad guard;
    const RunningStats running{Tensor::zeros({64}, DType::f32, device), Tensor::full({64}, 1, DType::f32, device), {}};
    const auto input = [&](const Shape& s, uint64_t stream) {
      return random(s, stream).to(DType::f16).to(dtype).to(device);
    };
    const Tensor ones = Tensor::full({64}, 1, DType::f32, device), zeros = Tensor::zeros({64}, DType::f32, device);
    const Var y = conv_bn_relu(input({64, 32, 32, 64}, 1), input({64, 3, 3, 64}, 2), {}, ones, zeros, running,
                               {.padding = 1}, {.momentum = 1});
    return std::vector{y.value().to(Device::cpu()), running.mean.to(Device::cpu()), running.var.to(Device::cpu())};
  };
  const auto expected = statistics(TuneMode::off, DType::f32), plain = statistics(TuneMode::off, DType::f16);
  const auto tuned = statistics(TuneMode::fast, DType::f16);
  for (size_t i = 0; i < expected.size(); ++i) {
    CHECK(distance(plain[i], expected[i], 1e-2) <= 2e-3);
    CHECK(distance(tuned[i], expected[i], 1e-2) <= 2e-3);
  }
}

TEST_CASE("cuda plans: FP32 keeps off Tensor Cores unless TF32 is on; half uses them") {
  HT_NEEDS_CUDA();
  const Settings settings;
  for (const Case& c : {conv_case(24), linear_case(192)}) {
    const std::string op = c.is_conv ? "conv2d forward" : "gemm", size = c.is_conv ? "[24," : "192x256x512";
    const Tensor exact = c.run(DType::f64, Device::cpu());
    CHECK(distance(c.run(DType::f32, Device::cuda()), exact, 0) <= 1e-5);
    CHECK(!chosen(op, size).tensor_cores);
    set_tf32(true);
    const double error = distance(c.run(DType::f32, Device::cuda()), exact, 0);
    set_tf32(false);
    const PlanChoice tf32 = chosen(op, size);
    MESSAGE("TF32: ", tf32.problem, " -> ", tf32.plan, tf32.tensor_cores ? ", Tensor Cores" : "", ", relative L2 ",
            error);
    CHECK(error <= 2e-3);
    CHECK((error > 1e-5) == tf32.tensor_cores);  // the note is true: 10 bits of mantissa show
    CHECK(distance(c.run(DType::f16, Device::cuda()), exact, 0) <= 2e-3);
    CHECK(chosen(op, size).tensor_cores);
    CHECK(distance(c.run(DType::f32, Device::cuda()), exact, 0) <= 1e-5);  // TF32's plan does not stay
  }
}

TEST_CASE("cuda plans: every tune mode gives the CPU's result, and full is at least as choosy as fast") {
  HT_NEEDS_CUDA();
  const Settings settings;
  const Case conv = conv_case(10), product = linear_case(100);
  const Tensor exact_conv = conv.run(DType::f64, Device::cpu()), exact_product = product.run(DType::f64, Device::cpu());
  for (const TuneMode mode : {TuneMode::off, TuneMode::fast, TuneMode::full}) {
    set_tune_mode(mode);
    INFO(name_of(mode));
    CHECK(distance(conv.run(DType::f16, Device::cuda()), exact_conv, 0) <= 2e-3);
    CHECK(distance(product.run(DType::f16, Device::cuda()), exact_product, 0) <= 2e-3);
    MESSAGE(name_of(mode), ": ", chosen("conv2d forward", "[10,").plan, " and ", chosen("gemm", "100x256x512").plan);
  }
}

TEST_CASE("cuda plans: a plan on disk is restored, not searched again") {
  HT_NEEDS_CUDA();
  const Settings settings;
  const Case conv = conv_case(11), product = linear_case(110);
  const Tensor first = conv.run(DType::f16, Device::cuda());
  CHECK(settings.files() == 1);
  product.run(DType::f16, Device::cuda());
  const std::string plan = chosen("conv2d forward", "[11,").plan;
  for (const auto& file : std::filesystem::directory_iterator(settings.path)) std::filesystem::remove(file.path());
  // Another thread has no plans in memory yet. A search would end with a file.
  Tensor again;
  std::thread([&] {
    again = conv.run(DType::f16, Device::cuda());
    product.run(DType::f16, Device::cuda());
  }).join();
  CHECK(settings.files() == 0);
  CHECK(chosen("conv2d forward", "[11,").plan == plan);
  CHECK(again.to_vector() == first.to_vector());
}

TEST_CASE("cuda plans: no workspace at all still leaves a plan") {
  HT_NEEDS_CUDA();
  const Settings settings;
  set_workspace_limit(0);
  const Case conv = conv_case(12), product = linear_case(120);
  CHECK(distance(conv.run(DType::f16, Device::cuda()), conv.run(DType::f64, Device::cpu()), 0) <= 2e-3);
  CHECK(distance(product.run(DType::f16, Device::cuda()), product.run(DType::f64, Device::cpu()), 0) <= 2e-3);
}
