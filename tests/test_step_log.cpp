// The device's log of steps: hand-computed entries, dtypes, the ring's turn, as a part of a CUDA graph.
#include <doctest/doctest.h>

#include <cmath>

#include "core/captured_step.h"
#include "core/host_copy.h"
#include "models/step_log.h"
#include "optim/sgd.h"
#include "tests/error_of.h"
#include "tests/on_devices.h"

using namespace ht;
using models::StepEntry;
using models::StepLog;

namespace {
const double kNan = std::nan("");

// Rows: right; a tie, of which the first counts; its second; NaN, infinity and -infinity first; NaN later, passed over.
const Tensor kLogits = Tensor::from({1,    2, 0,  //
                                     3,    1, 3,  //
                                     3,    1, 3,  //
                                     kNan, 1, 2, INFINITY, 1, 2, -INFINITY, 1, 2, 1, kNan, 2},
                                    {7, 3});
const Tensor kLabels = Tensor::from({1, 0, 2, 0, 0, 2, 2}, {7}, DType::i32);
constexpr int64_t kCorrect = 4;

void entries(Device device) {
  StepLog log(device);
  CHECK(log.read().empty());
  for (const DType logits : {DType::f32, DType::f64, DType::f16, DType::bf16})
    for (const DType labels : {DType::i32, DType::i64, DType::u8})
      log.record(Tensor::full({}, 1.5, logits).to(device), kLogits.to(logits).to(device),
                 kLabels.to(labels).to(device));
  log.record(Tensor::full({1}, kNan).to(device), Tensor::empty({0, 3}).to(device),
             Tensor::empty({0}, DType::i32).to(device));
  const std::vector<StepEntry> all = log.read();
  REQUIRE(all.size() == 13);
  for (size_t i = 0; i < 12; ++i) {
    CHECK(all[i].loss == 1.5);
    CHECK(all[i].lr == 0);
    CHECK(all[i].correct == kCorrect);
    CHECK(all[i].images == 7);
  }
  CHECK(std::isnan(all[12].loss));
  CHECK(all[12].correct == 0);
  CHECK(all[12].images == 0);
  CHECK(log.read().empty());
}

// More rows than the kernel has threads.
void large_batch(Device device) {
  const int64_t n = 5001;
  const Tensor logits = Tensor::normal({n, 10}, {3, 1}), labels = Tensor::empty({n}, DType::i32);
  for (int64_t i = 0; i < n; ++i) labels.data<int32_t>()[i] = static_cast<int32_t>(i % 10);
  int64_t correct = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float* row = logits.data<float>() + 10 * i;
    correct += std::max_element(row, row + 10) - row == i % 10;
  }
  StepLog log(device);
  log.record(Tensor::full({}, 1).to(device), logits.to(device), labels.to(device));
  CHECK(log.read().at(0).correct == correct);
  CHECK(models::count_correct(logits.to(device), labels.to(device)) == correct);
}

void turns(Device device) {
  StepLog log(device);
  const Tensor logits = kLogits.to(device), labels = kLabels.to(device);
  const auto record = [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) log.record(Tensor::full({}, static_cast<double>(i)).to(device), logits, labels);
  };
  const int64_t most = StepLog::kSlots;
  record(0, most - 3);
  CHECK(log.read().size() == most - 3);
  record(most - 3, 2 * most - 3);
  const std::vector<StepEntry> all = log.read();
  REQUIRE(all.size() == most);
  for (int64_t i = 0; i < most; ++i) CHECK(all[static_cast<size_t>(i)].loss == static_cast<double>(most - 3 + i));
  record(0, most + 1);
  CHECK(error_of([&] { log.read(); }) ==
        "step log: 257 steps were recorded since the last read, it keeps 256; read it more often");
}

// A copy holds what was there when it was asked for, however late it is taken.
void late(Device device) {
  StepLog log(device);
  const Tensor logits = kLogits.to(device), labels = kLabels.to(device);
  const auto record = [&](int n) {
    for (int i = 0; i < n; ++i) log.record(Tensor::full({}, i).to(device), logits, labels);
  };
  const std::unique_ptr<HostCopy> copy = make_host_copy({log.memory(), Tensor::full({3}, 7).to(device)});
  CHECK(!copy->requested());
  record(3);
  copy->request();
  record(2);
  CHECK(copy->requested());
  std::vector<Tensor> found = copy->take();
  CHECK(!copy->requested());
  CHECK(found[1].to_vector() == std::vector<double>(3, 7));
  CHECK(log.read(found[0]).size() == 3);
  CHECK(log.read().size() == 2);
  copy->request();
  record(1);
  CHECK(log.read().size() == 1);
  CHECK(log.read(copy->take()[0]).empty());  // older than what was read
}

// The rate is that of the step, before the optimizer counts it. On CUDA the last steps are replays.
void rates(Device device) {
  const Var p(Tensor::full({4}, 1).to(device), true);
  optim::Sgd sgd({p}, {.lr = 1});
  sgd.set_schedule(optim::step_lr(1, 0.5), 10);
  StepLog log(device);
  CapturedStep step(device, [&](std::span<const Tensor> in) {
    p.grad_slot() = Tensor::full({4}, 1, DType::f32, device);
    log.record(in[0], in[1], in[2], sgd.rate());
    sgd.step();
  });
  for (int i = 0; i < 6; ++i) step({Tensor::full({}, i).to(device), kLogits.to(device), kLabels.to(device)});
  CHECK(step.replayed() == device.is_cuda());
  const std::vector<StepEntry> all = log.read();
  REQUIRE(all.size() == 6);
  for (size_t i = 0; i < 6; ++i) {
    CHECK(all[i].loss == static_cast<double>(i));
    CHECK(all[i].lr == std::pow(0.5, i));
    CHECK(all[i].correct == kCorrect);
  }
}
}  // namespace

HT_ON_DEVICES("step log: loss, correct rows and images, in every dtype", entries)
HT_ON_DEVICES("step log: a large batch", large_batch)
HT_ON_DEVICES("step log: the ring turns; entries that were lost are an error", turns)
HT_ON_DEVICES("step log: read from a copy that was asked for earlier", late)
HT_ON_DEVICES("step log: in a captured step, with its rate", rates)

TEST_CASE("step log: what does not fit is an error") {
  StepLog log(Device::cpu());
  const Tensor loss = Tensor::full({}, 1);
  CHECK(error_of([&] { log.record(loss, kLogits, kLabels.rows(0, 3)); }) ==
        "step log: needs a loss of one element, logits [n, classes] and a label a row (loss [] f32 cpu, logits [7,3] "
        "f32 cpu, labels [3] i32 cpu)");
  CHECK_THROWS_AS(log.record(kLogits, kLogits, kLabels), Error);
  CHECK_THROWS_AS(log.record(loss, kLogits.view({21}), kLabels), Error);
  CHECK(log.read().empty());
}
