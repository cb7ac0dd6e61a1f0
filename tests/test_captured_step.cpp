// CapturedStep: on the CPU it is a plain call; on CUDA a recording gives what running gives, bit for bit in
// deterministic mode.
#include <doctest/doctest.h>

#include "core/allocator.h"
#include "core/captured_step.h"
#include "data/loader.h"
#include "data/synthetic.h"
#include "models/vgg.h"
#include "ops/ops.h"
#include "optim/sgd.h"
#include "tests/cuda_test.h"
#include "tests/error_of.h"

using namespace ht;

namespace {
struct DeterministicGuard {
  DeterministicGuard() { set_deterministic(true); }
  ~DeterministicGuard() { set_deterministic(false); }
};

struct Run {
  std::vector<double> losses;
  StateDict state;
  uint64_t position = 0;
};

// Trains a small network with dropout on changing batches, `sizes[i]` images in step i.
Run train(Device device, bool captured, const std::vector<int64_t>& sizes) {
  manual_seed(11);
  nn::Sequential model = models::vgg({.depth = 11, .batch_norm = true, .classes = 4, .width = 0.125, .hidden = 64});
  model.to(device);
  optim::Sgd sgd(model.parameters(), {.lr = 0.02, .momentum = 0.9, .nesterov = true});
  sgd.set_schedule(optim::cosine_lr(20), 20);
  const Tensor loss_of_step = Tensor::zeros({}, DType::f32, device);
  const auto step = [&](std::span<const Tensor> in) {
    sgd.zero_grad();
    const Var loss = cross_entropy(model(in[0]), in[1]);
    loss.backward();
    sgd.step();
    loss_of_step.copy_(loss.value());
  };
  CapturedStep graph(device, step, 2);
  Run run;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Tensor x = Tensor::normal({sizes[i], 32, 32, 3}, {5, i}).to(device);
    std::vector<int64_t> labels(static_cast<size_t>(sizes[i]));
    for (size_t k = 0; k < labels.size(); ++k) labels[k] = static_cast<int64_t>((k + i) % 4);
    const Tensor y = Tensor::of<int64_t>(labels, {sizes[i]}).to(device);
    if (captured) {
      graph({x, y});
    } else {
      step(std::vector{x, y});
    }
    run.losses.push_back(loss_of_step.item());
  }
  run.state = model.state_dict();
  for (const auto& [key, value] : sgd.state_dict()) run.state["sgd." + key] = value;
  run.position = Context::of(device).generator().position();
  CHECK(graph.replayed() == (captured && device.is_cuda()));
  return run;
}

void check_same(const Run& a, const Run& b) {
  CHECK(a.losses == b.losses);
  CHECK(a.position == b.position);
  REQUIRE(a.state.size() == b.state.size());
  for (const auto& [key, value] : a.state) CHECK_MESSAGE(value.to_vector() == b.state.at(key).to_vector(), key);
}
}  // namespace

TEST_CASE("captured step: runs the step on the CPU, with the inputs copied") {
  int calls = 0;
  const Tensor x = Tensor::from({1, 2}, {2});
  CapturedStep step(Device::cpu(), [&](std::span<const Tensor> in) {
    ++calls;
    CHECK(in[0].to_vector() == std::vector<double>{1, 2});
    CHECK(!in[0].same_storage(x));
  });
  for (int i = 0; i < 5; ++i) step({x});
  CHECK(calls == 5);
  CHECK(!step.replayed());
}

TEST_CASE("captured step: bad arguments") {
  CHECK(error_of([] { CapturedStep(Device::cpu(), nullptr); }) == "captured step: there is no step");
  CHECK(error_of([] {
          CapturedStep(
              Device::cpu(), [](std::span<const Tensor>) {}, 0);
        }) == "captured step: warm_up is 0 but must be at least 1");
}

TEST_CASE(
    "cuda captured step: training with dropout and a schedule, the same bits as eager; other shapes record again") {
  HT_NEEDS_CUDA();
  const DeterministicGuard guard;
  const std::vector<int64_t> sizes{6, 6, 6, 6, 4, 6, 4, 4, 6, 4};
  check_same(train(Device::cuda(), true, sizes), train(Device::cuda(), false, sizes));
}

TEST_CASE("cuda captured step: a replay raises versions, keeps its memory and needs no more") {
  HT_NEEDS_CUDA();
  const Device gpu = Device::cuda();
  const Tensor total = Tensor::zeros({1000}, DType::f32, gpu), one = Tensor::full({1000}, 1, DType::f32, gpu);
  Var sum_of;
  CapturedStep step(gpu, [&](std::span<const Tensor> in) {
    const Var y = scale(in[0], 2);
    total.copy_(add(total, y).value());
    sum_of = sum(total);
  });
  for (int i = 0; i < 4; ++i) step({one});
  REQUIRE(step.replayed());
  CapturedStep never(
      gpu, [](std::span<const Tensor> in) { sum(in[0]).item(); }, CapturedStep::kNever);
  for (int i = 0; i < 5; ++i) never({one});
  CHECK(!never.replayed());
  const uint64_t version = total.version();
  const size_t reserved = memory_stats(gpu).reserved;
  for (int i = 0; i < 100; ++i) {
    step({one});
    // Whatever is allocated between replays must not lie where the recording works.
    CHECK(Tensor::full({1000}, 7, DType::f32, gpu).to_vector() == std::vector<double>(1000, 7));
  }
  CHECK(total.version() == version + 100);
  CHECK(sum_of.item() == 104 * 2 * 1000);
  CHECK(memory_stats(gpu).reserved <= reserved + (4 << 20));
}

TEST_CASE("cuda captured step: each replay makes the loader's next batch, over epochs, loops and seeks") {
  HT_NEEDS_CUDA();
  const data::ImageDataset set = data::make_synthetic({.train = 70, .test = 10}).train;
  data::LoaderOptions options{.batch_size = 16,
                              .drop_last = true,
                              .augment = {.flip = data::Flip::random, .crop_pad = 4, .cutout = 8},
                              .seed = 5,
                              .prefetch = 0};
  data::Loader expected(set, options);
  options.device = Device::cuda();
  data::Loader loader(set, options);
  const Tensor x = Tensor::zeros({16, 32, 32, 3}, DType::f32, options.device);
  const Tensor y = Tensor::zeros({16}, DType::i32, options.device);
  CapturedStep step(options.device, [&](std::span<const Tensor>) {
    const data::Batch batch = loader.next();
    x.copy_(batch.x);
    y.copy_(batch.y);
  });
  const auto same = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      step({});
      const data::Batch want = expected.next();
      CHECK(x.to_vector() == want.x.to_vector());
      CHECK(y.to_vector() == want.y.to_vector());
      CHECK(loader.position() == expected.position());
    }
  };
  same(14);  // three epochs and a half
  CHECK(step.replayed());
  for (const data::LoaderPosition at : {data::LoaderPosition{1, 3}, {0, 0}}) {
    loader.seek(at), expected.seek(at);
    same(6);
  }
  for (const data::Batch& batch : loader) CHECK(batch.x.to(Device::cpu()).to_vector() == expected.next().x.to_vector());
  same(3);

  options.drop_last = false;
  data::Loader ragged(set, options);
  CapturedStep other(
      options.device, [&](std::span<const Tensor>) { ragged.next(); }, 1);
  other({});
  CHECK(error_of([&] { other({}); }).find("the last batch of an epoch is smaller") != std::string::npos);
}

TEST_CASE("cuda captured step: a step that reads back is an error that says so, and the device stays usable") {
  HT_NEEDS_CUDA();
  const Tensor x = Tensor::full({8}, 3, DType::f32, Device::cuda());
  CapturedStep step(
      Device::cuda(), [](std::span<const Tensor> in) { sum(in[0]).item(); }, 1);
  step({x});
  const std::string text = error_of([&] { step({x}); });
  CHECK_MESSAGE(text.find("captured step: while recording: ") == 0, text);
  CHECK_MESSAGE(text.find("may not read values back") != std::string::npos, text);
  CHECK(sum(x).item() == 24);
}
