// What the training program tells: its JSON lines, skipped steps under amp, a run that diverges.
#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/captured_step.h"
#include "models/layers.h"
#include "models/sequential.h"
#include "models/trainer.h"
#include "models/vgg.h"
#include "optim/sgd.h"
#include "tests/data_helpers.h"
#include "tests/on_devices.h"

using namespace ht;

namespace {
// A linear classifier of two kinds of images, and options that write a log.
struct Subject {
  data::TempFolder folder;
  models::TrainOptions o;
  nn::Sequential net;
  optim::Sgd sgd;

  Subject() : net(classifier()), sgd(net.parameters(), {.lr = 0.5}) {
    o.device = Device::cpu();
    o.log = (folder.path / "log.jsonl").string();
    o.quiet = true;
  }
  static nn::Sequential classifier() {
    nn::Sequential net;
    net.add<nn::Flatten>();
    net.add<nn::Linear>(32 * 32 * 3, 2);
    return net;
  }
};

std::vector<nlohmann::json> read_lines(const std::string& path) {
  std::ifstream in(path);
  std::vector<nlohmann::json> out;
  for (std::string line; std::getline(in, line);) out.push_back(nlohmann::json::parse(line));
  return out;
}

// The records of two epochs of ten steps of a narrow VGG16, as train_vgg16 makes them; what depends on the clock, and
// on when amp's status was read, is left out.
std::vector<nlohmann::json> trained(Device device, bool captured, amp::Level level) {
  manual_seed(3);
  data::TempFolder folder;
  models::TrainOptions o;
  o.device = device;
  o.log = (folder.path / "log.jsonl").string();
  o.quiet = true;
  o.print_freq = 4;
  nn::Sequential net = models::vgg16({.width = 0.05});
  net.to(device);
  optim::Sgd sgd(net.parameters(), {.lr = 0.01, .momentum = 0.9});
  sgd.set_schedule(optim::cosine_lr(20), 20);
  amp::Amp amp = amp::initialize(net, sgd, {.level = level});
  data::Loader loader(data::random_set(60), {.batch_size = 6, .device = device});
  models::Reporter report(o, {.model = "m", .data = "d", .steps_per_epoch = 10, .total_steps = 20}, sgd, &amp);
  const auto train_step = [&](std::span<const Tensor> batch) {
    sgd.zero_grad();
    const Var logits = net(batch[0]), loss = cross_entropy(logits, batch[1]);
    amp.backward(loss);
    report.step(loss, logits, batch[1]);
    sgd.step();
  };
  CapturedStep step(device, train_step, captured ? CapturedStep::kWarmUp : CapturedStep::kNever);
  data::Loader test(data::random_set(10), {.batch_size = 10, .device = device});
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const auto& [x, y] : loader) step({x, y});
    report.evaluation(models::evaluate(net, test), "test");
    report.epoch();
  }
  CHECK(step.replayed() == (captured && device.is_cuda()));
  CHECK(report.steps() == 20);
  std::vector<nlohmann::json> lines = read_lines(o.log);
  std::erase_if(lines, [](const nlohmann::json& line) { return line["type"] == "skip"; });
  for (nlohmann::json& line : lines)
    for (const char* key :
         {"seconds", "images_per_second", "peak_memory_bytes", "loss_scale", "skipped_steps", "applied_steps"})
      line.erase(key);
  return lines;
}

void same_log(Device device) {
  set_deterministic(true);
  for (const amp::Level level : {amp::O0, amp::O1}) {
    const auto graph = trained(device, true, level), eager = trained(device, false, level);
    REQUIRE(graph.size() == 1 + 10 + 1 + 10 + 1);
    for (size_t i = 0; i < graph.size(); ++i)
      CHECK_MESSAGE(graph[i] == eager[i], graph[i].dump(), " ", eager[i].dump());
    for (size_t i = 1; i <= 10; ++i) CHECK(graph[i]["step"] == i);
    CHECK(graph[21]["step"] == 20);
    CHECK(graph[21]["lr"].get<double>() < graph[20]["lr"].get<double>());
  }
  set_deterministic(false);
}
}  // namespace

HT_ON_DEVICES("Reporter: a captured step logs what an eager one does", same_log)

TEST_CASE("Reporter: on the CPU a loss that is not finite stops the step before the update") {
  Subject subject;
  auto& [folder, o, net, sgd] = subject;
  models::Reporter report(o, {.model = "m", .data = "d", .steps_per_epoch = 4, .total_steps = 4}, sgd);
  CapturedStep step(o.device, [&](std::span<const Tensor> batch) {
    sgd.zero_grad();
    const Var logits = net(batch[0]), loss = cross_entropy(logits, batch[1]);
    loss.backward();
    report.step(loss, logits, batch[1]);
    sgd.step();
  });
  const Tensor x = Tensor::normal({2, 32, 32, 3}, {1, 1}), labels = Tensor::from({0, 1}, {2}, DType::i32);
  step({x, labels});
  const std::vector<double> weights = net.parameters()[0].value().to_vector();
  x.fill_(NAN);
  CHECK_THROWS_WITH(step({x, labels}),
                    "step 2 (epoch 1): the loss is nan; training has diverged, try a smaller --lr (0.5 now)");
  CHECK(net.parameters()[0].value().to_vector() == weights);
}

TEST_CASE("Reporter: with a validation set that one's best is told, the test beside it") {
  Subject subject;
  auto& [folder, o, net, sgd] = subject;
  {
    models::Reporter report(
        o, {.model = "m", .data = "d", .validation_images = 4, .steps_per_epoch = 1, .total_steps = 2}, sgd);
    report.evaluation({.loss = 1, .accuracy = 0.75, .images = 4}, "validation");
    report.epoch();
    report.evaluation({.loss = 2, .accuracy = 0.5, .images = 4}, "validation");
    report.evaluation({.loss = 3, .accuracy = 0.25, .images = 8}, "test");
    report.epoch();
    report.finish(0);
  }
  const auto lines = read_lines(o.log);
  REQUIRE(lines.size() == 4);
  CHECK(lines[1]["validation_accuracy"] == 0.75);
  CHECK(lines[1]["test_accuracy"].is_null());
  CHECK(lines[2]["validation_loss"] == 2);
  CHECK(lines[2]["test_loss"] == 3);
  CHECK(lines[3]["best_validation_accuracy"] == 0.75);
  CHECK(lines[3]["validation_accuracy"] == 0.5);
  CHECK(lines[3]["test_accuracy"] == 0.25);
}

TEST_CASE("Reporter: under amp a skipped step is told with its cause and the run goes on") {
  Subject subject;
  auto& [folder, o, net, sgd] = subject;
  amp::Amp amp = amp::initialize(net, sgd, {.init_scale = 8});
  const Tensor x = Tensor::normal({2, 32, 32, 3}, {1, 1}), labels = Tensor::from({0, 1}, {2}, DType::i32);
  {
    models::Reporter report(o, {.model = "m", .data = "d", .test_images = 4, .steps_per_epoch = 4, .total_steps = 4},
                            sgd, &amp);
    for (int step = 0; step < 4; ++step) {
      sgd.zero_grad();
      const Var logits = net(x), loss = cross_entropy(logits, labels);
      amp.backward(loss);
      if (step == 1) net.parameters()[0].grad_slot().fill_(INFINITY);
      report.step(step == 2 ? Var(Tensor::full({}, NAN)) : loss, logits, labels);
      sgd.step();
    }
    report.epoch();
    CHECK(report.finish(0) == 0);
  }
  const auto lines = read_lines(o.log);
  CHECK(lines[0]["amp"] == "O1");
  CHECK(lines[0]["dtype"] == "f16");
  CHECK(lines[1]["loss_scale"] == 8);
  CHECK(lines[1]["applied_steps"] == 0);
  REQUIRE(lines[3]["type"] == "skip");
  CHECK(lines[3]["cause"] == "the gradient of 1.weight was not finite at loss scale 8");
  CHECK(lines[4]["loss"].is_null());  // left out of the mean
  CHECK(lines[6]["type"] == "epoch");
  CHECK(lines[6]["loss"].is_number());
  CHECK(lines[6]["skipped_steps"] == 1);
  CHECK(lines[7]["applied_steps"] == 3);
}

TEST_CASE("Reporter: one JSON line a record; a loss that is not finite ends the run and names the step") {
  Subject subject;
  auto& [folder, o, net, sgd] = subject;
  const Tensor logits = Tensor::from({1, 0, 0, 1}, {2, 2}), labels = Tensor::from({0, 0}, {2}, DType::i32);
  {
    models::Reporter report(o, {.model = "m", .data = "d", .test_images = 4, .steps_per_epoch = 2, .total_steps = 4},
                            sgd);
    report.step(Tensor::full({}, 2), logits, labels);
    report.step(Tensor::full({}, 1), logits, labels);
    report.evaluation({.loss = 3, .accuracy = 0.75, .images = 4}, "test");
    report.epoch();
    report.step(Tensor::full({}, 1), logits, labels);
    report.evaluation({.loss = 0, .accuracy = 1, .images = 2, .cut_short = true}, "test");  // not counted
    CHECK_THROWS_WITH(report.step(Tensor::full({}, std::nan("")), logits, labels),
                      "step 4 (epoch 2): the loss is nan; training has diverged, try a smaller --lr (0.5 now)");
  }
  const auto lines = read_lines(o.log);
  REQUIRE(lines.size() == 7);
  CHECK(lines[0]["type"] == "config");
  CHECK(lines[0]["total_steps"] == 4);
  CHECK(lines[1]["loss"] == 2.0);
  CHECK(lines[1]["accuracy"] == 0.5);
  CHECK(lines[1]["lr"] == 0.5);
  CHECK(lines[3]["type"] == "epoch");
  CHECK(lines[3]["loss"] == 1.5);
  CHECK(lines[3]["train_accuracy"] == 0.5);
  CHECK(lines[3]["test_accuracy"] == 0.75);
  CHECK(lines[5]["loss"].is_null());
  CHECK(lines[6]["status"] == "diverged");

  o.log = (folder.path / "no/such/folder/log.jsonl").string();
  CHECK_THROWS_AS(models::Reporter(o, {}, sgd), Error);
}

TEST_CASE("Reporter: train_s holds the steps after the first four, and no evaluation") {
  Subject subject;
  auto& [folder, o, net, sgd] = subject;
  const Tensor x = Tensor::normal({2, 32, 32, 3}, {1, 1}), labels = Tensor::from({0, 1}, {2}, DType::i32);
  const auto pass = [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
  {
    models::Reporter report(o, {.model = "m", .data = "d", .steps_per_epoch = 6, .total_steps = 12}, sgd);
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (int step = 0; step < 6; ++step) {
        pass(10);
        const Var logits = net(x);
        report.step(cross_entropy(logits, labels), logits, labels);
      }
      if (epoch == 0) {
        report.pause();
        pass(150);  // an evaluation
      }
      report.epoch();
    }
    report.finish(0);
  }
  const nlohmann::json summary = read_lines(o.log).back();
  const double first = summary["warm_up_s"], train = summary["train_s"], seconds = summary["seconds"];
  CHECK(first >= 0.04);
  CHECK(train >= 0.08);
  CHECK(first + train <= seconds - 0.15);
}
