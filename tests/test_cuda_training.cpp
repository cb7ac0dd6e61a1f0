// What training needs besides the ops on CUDA: batches, optimizers, clipping, copies, steady memory.
#include <doctest/doctest.h>

#include <cmath>

#include "core/allocator.h"
#include "data/loader.h"
#include "data/synthetic.h"
#include "models/init.h"
#include "models/vgg.h"
#include "ops/ops.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "optim/sgd.h"
#include "tests/cuda_test.h"

using namespace ht;

TEST_CASE("cuda: the loader gives the CPU's batches, bit for bit") {
  HT_NEEDS_CUDA();
  const data::ImageDataset set = data::make_synthetic({.train = 300, .test = 10}).train;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    data::LoaderOptions options{.batch_size = 64, .seed = 3};
    options.augment = {.flip = data::Flip::random, .crop_pad = 4, .cutout = 9};
    options.dtype = dtype;
    data::Loader cpu(set, options);
    options.device = Device::cuda();
    data::Loader cuda(set, options);
    for (int epoch = 0; epoch < 2; ++epoch) {
      auto theirs = cuda.begin();
      for (auto [x, y] : cpu) {
        const data::Batch batch = *theirs;
        REQUIRE(batch.x.device().is_cuda());
        CHECK(batch.x.to_vector() == x.to_vector());
        CHECK(batch.y.to_vector() == y.to_vector());
        ++theirs;
      }
      CHECK(theirs == cuda.end());
    }
  }
}

namespace {
// Twelve steps of an optimizer on a device, gradients from a fixed stream; sizes that fill no vector evenly.
template <class Make>
std::vector<double> optimize(Make make, Device device, DType grad_dtype) {
  std::vector<Var> params;
  for (const int64_t n : {1, 7, 1000, 40001})
    params.emplace_back(Tensor::normal({n}, {5, static_cast<uint64_t>(n)}).to(device), true);
  auto optimizer = make(params);
  for (uint64_t step = 0; step < 12; ++step) {
    uint64_t k = 0;
    for (const Var& p : params)
      p.grad_slot() = Tensor::normal(p.shape(), {6, 100 * step + k++}).to(grad_dtype).to(device);
    optim::clip_grad_norm_(params, 50);
    optimizer.step();
  }
  CHECK(optimizer.applied_steps() == 12);
  std::vector<double> all;
  for (const Var& p : params)
    for (const double v : p.value().to_vector()) all.push_back(v);
  return all;
}

template <class Make>
void check_optimizer(Make make) {
  for (const DType grad : {DType::f32, DType::f16}) {
    const std::vector<double> cpu = optimize(make, Device::cpu(), grad), cuda = optimize(make, Device::cuda(), grad);
    REQUIRE(cpu.size() == cuda.size());
    double worst = 0;
    for (size_t i = 0; i < cpu.size(); ++i) worst = std::max(worst, std::abs(cpu[i] - cuda[i]));
    CHECK(worst < (grad == DType::f32 ? 1e-5 : 1e-3));
  }
}
}  // namespace

TEST_CASE("cuda: sgd, adamw and clipping take the CPU's steps") {
  HT_NEEDS_CUDA();
  check_optimizer([](const std::vector<Var>& p) {
    return optim::Sgd(p, {.lr = 0.05, .momentum = 0.9, .nesterov = true, .weight_decay = 0.01});
  });
  check_optimizer([](const std::vector<Var>& p) { return optim::Sgd(p, {.lr = 0.05}); });
  check_optimizer([](const std::vector<Var>& p) { return optim::AdamW(p, {.lr = 0.01}); });
}

TEST_CASE("cuda: conversions between all dtypes are the CPU's") {
  HT_NEEDS_CUDA();
  const Tensor values =
      Tensor::from({-1e9, -300.7, -1.5, -0.0, 0.3, 2.5, 255.6, 70000.0, 3e9, NAN, INFINITY}, {11}, DType::f64);
  for (const DType from : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::u8, DType::i32, DType::i64})
    for (const DType to : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::u8, DType::i32, DType::i64}) {
      const Tensor start = values.to(from);
      const std::vector<double> cpu = start.to(to).to_vector(), cuda = start.to(Device::cuda()).to(to).to_vector();
      for (size_t i = 0; i < cpu.size(); ++i)
        CHECK_MESSAGE((cpu[i] == cuda[i] || (std::isnan(cpu[i]) && std::isnan(cuda[i]))), name_of(from), " -> ",
                      name_of(to), ": ", cpu[i], " ", cuda[i]);
    }
}

TEST_CASE("cuda: a thousand training steps hold no more memory than ten") {
  HT_NEEDS_CUDA();
  manual_seed(1);
  nn::Sequential model = models::vgg16({.width = 0.125});
  model.to(Device::cuda());
  optim::Sgd sgd(model.parameters(), {.lr = 0.001, .momentum = 0.9});
  const Var x = Tensor::normal({16, 32, 32, 3}, {7, 1}).to(Device::cuda());
  const Var y = Tensor::zeros({16}, DType::i64).to(Device::cuda());
  MemoryStats early;
  for (int step = 0; step < 1000; ++step) {
    sgd.zero_grad();
    cross_entropy(model(x), y).backward();
    sgd.step();
    if (step == 10) early = memory_stats(Device::cuda());
  }
  const MemoryStats late = memory_stats(Device::cuda());
  CHECK(late.allocated == early.allocated);
  CHECK(late.reserved == early.reserved);
  CHECK(late.peak == early.peak);
}

namespace {
// `steps` losses of VGG16 at an eighth of the width on one batch of 32, and the weights after them.
struct Training {
  std::vector<double> losses;
  StateDict state;
};

Training train_vgg16(Device device, int steps, double lr) {
  manual_seed(11);
  nn::Sequential model = models::vgg16({.width = 0.125});
  // Signals that keep their size: with PyTorch's default they shrink, and rounding errors grow, from layer to layer.
  for (const Var& p : model.parameters())
    if (p.shape().rank() == 4) nn::kaiming_uniform_(p.value(), {.a = 1});
  model.to(device);
  optim::Sgd sgd(model.parameters(), {.lr = lr, .momentum = 0.9});
  const Var x = Tensor::normal({32, 32, 32, 3}, {7, 1}).to(device);
  std::vector<int64_t> labels(32);
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<int64_t>(i * 7 % 10);
  const Var y = Tensor::of<int64_t>(labels, {32}).to(device);
  Training t;
  for (int step = 0; step < steps; ++step) {
    sgd.zero_grad();
    const Var loss = cross_entropy(model(x), y);
    loss.backward();
    sgd.step();
    t.losses.push_back(loss.item());
  }
  t.state = model.state_dict();
  return t;
}

// Deterministic mode (on the CPU: direct convolution) while it lives.
struct Deterministic {
  Deterministic() { set_deterministic(true); }
  ~Deterministic() { set_deterministic(false); }
};
}  // namespace

TEST_CASE("cuda: deterministic training gives the same bits twice") {
  HT_NEEDS_CUDA();
  const Deterministic mode;
  const Training a = train_vgg16(Device::cuda(), 20, 0.01), b = train_vgg16(Device::cuda(), 20, 0.01);
  CHECK(a.losses == b.losses);
  CHECK(a.losses.back() < a.losses.front());
  REQUIRE(a.state.size() == b.state.size());
  for (const auto& [name, tensor] : a.state) CHECK_MESSAGE(tensor.to_vector() == b.state.at(name).to_vector(), name);
}

// At the usual rate rounding grows by a factor of ten thousand over ten steps (tests/golden/make_losses.py), in any two
// programs: there only the step where they part is told.
TEST_CASE("cuda: the first ten losses are the CPU's") {
  HT_NEEDS_CUDA();
  const auto both = [](double lr) {
    const Deterministic mode;
    const Training cpu = train_vgg16(Device::cpu(), 10, lr);
    set_deterministic(false);
    return std::pair(cpu.losses, train_vgg16(Device::cuda(), 10, lr).losses);
  };
  const auto [cpu, cuda] = both(0.00001);
  double worst = 0;
  for (size_t i = 0; i < cpu.size(); ++i) worst = std::max(worst, std::abs(cuda[i] - cpu[i]) / cpu[i]);
  CHECK(worst <= 1e-3);
  MESSAGE("lr 0.00001: largest relative difference ", worst);

  const auto [usual_cpu, usual_cuda] = both(0.01);
  size_t step = 0;
  while (step < 10 && std::abs(usual_cuda[step] - usual_cpu[step]) <= 1e-3 * usual_cpu[step]) ++step;
  CHECK(step >= 1);
  MESSAGE("lr 0.01: ",
          step == 10 ? str("ten losses agree to 1e-3") : str("the losses part by more than 1e-3 at step ", step + 1));
}
