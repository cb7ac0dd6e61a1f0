// One repeat of the benchmark, a process of its own so that its memory is its own; bench/run_benchmark.py runs them all
// and docs/benchmark.md says what is measured.
//   bench_benchmark repeat --method amp --batch 128 [--number 0] [--data DIR] ...
//   bench_benchmark hardware [--gemm 8192]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bench/methods.h"
#include "bench/timing.h"
#include "core/captured_step.h"
#include "core/cuda_context.h"
#include "halftone.h"

namespace {
using Clock = std::chrono::steady_clock;
using nlohmann::json;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

constexpr double kMiB = 1 << 20;
constexpr int kWindows = 5;
constexpr int64_t kWarmUp = 5;  // first iterations of a run, in which plans are found and the step is captured

struct RepeatOptions {
  std::string method = "fp32";
  int64_t batch = 128, iterations = 100;
  int number = 0;                                   // of this repeat, from 0
  std::string data;                                 // folder of CIFAR-10's binary files; empty: the generated set
  int64_t train_images = 8000, test_images = 2000;  // of the generated set
  double width = 1;
  uint64_t seed = 7;
  std::string device = ht::cuda_device_count() > 0 ? "cuda" : "cpu";
  std::string tune = "fast", init = "uniform";
  bool eager = false;
  bool applied = false;  // count applied steps only: a skipped one does not use up an iteration
};

// Median milliseconds a call over windows of about 0.1 s. `guess_s`: what one call should take.
template <class F>
double step_ms(ht::Context& context, double guess_s, F&& step) {
  const int steps = static_cast<int>(std::clamp(std::ceil(0.1 / guess_s), 3.0, 50.0));
  step();
  context.synchronize();
  return bench::window_ms(kWindows, steps, step, [&] { context.synchronize(); })[kWindows / 2];
}

// In use on the whole GPU as its driver says: also the context, the libraries' code and the allocator's free blocks.
json driver_mib(ht::Device device) {
  if (!device.is_cuda()) return nullptr;
  const ht::CudaMemory memory = ht::cuda_memory(device.index);
  return static_cast<double>(memory.total - memory.free) / kMiB;
}

json run_repeat(const RepeatOptions& o) {
  const ht::Device device = ht::Device::parse(o.device);
  ht::Context& context = ht::Context::of(device);
  ht::set_tune_mode(ht::parse_tune_mode(o.tune));
  bench::use_method(o.method);
  const ht::data::TrainTest sets = o.data.empty()
                                       ? ht::data::make_synthetic({.train = o.train_images, .test = o.test_images})
                                       : ht::data::read_cifar10(o.data);

  // Repeat i takes the network that one process, seeded once, would make i-th.
  ht::manual_seed(o.seed);
  ht::nn::Sequential model = ht::models::vgg16({.classes = sets.train.classes(), .width = o.width});
  for (int i = 0; i < o.number; ++i) model = ht::models::vgg16({.classes = sets.train.classes(), .width = o.width});
  if (o.init == "kaiming") ht::nn::kaiming_fan_out_(model);
  model.to(device);
  ht::optim::Sgd sgd(model.parameters(), {.lr = 0.01, .momentum = 0.9});
  ht::amp::Amp amp = ht::amp::initialize(model, sgd, {.level = bench::level_of(o.method)});

  const ht::data::LoaderOptions loading{.batch_size = o.batch,
                                        .shuffle = false,
                                        .drop_last = true,
                                        .normalization = ht::data::Normalization::half(),
                                        .device = device};
  ht::data::Loader train(sets.train, loading);

  const ht::Tensor loss = ht::Tensor::zeros({1}, ht::DType::f32, device);
  const auto work = [&](std::span<const ht::Tensor> xy) {
    sgd.zero_grad();
    const ht::Var y = ht::cross_entropy(model(xy[0]), xy[1]);
    amp.backward(y);
    sgd.step();
    loss.copy_(y.value().reshape({1}));
  };
  ht::CapturedStep captured(device, work);
  const auto step = [&](const ht::data::Batch& batch) {
    const ht::Tensor xy[] = {batch.x, batch.y};
    o.eager ? work(xy) : captured(xy);
  };

  // Training: the clock covers batches, first-time work and all steps. No loss is read before the end.
  const ht::Tensor losses = ht::Tensor::zeros({o.iterations}, ht::DType::f32, device);
  ht::data::Batch last;
  json warm_up_s;
  context.synchronize();
  const auto start = Clock::now();
  for (int64_t i = 0, more = o.iterations; more > 0;) {
    for (const ht::data::Batch batch : train) {
      step(batch);
      losses.rows(i % o.iterations, i % o.iterations + 1).copy_(loss);
      if (++i == kWarmUp) {
        context.synchronize();
        warm_up_s = seconds_since(start);
      }
      if (--more == 0 && o.applied && amp.enabled()) more = o.iterations - amp.status().applied_steps;
      if (more > 0) continue;
      last = batch;
      break;
    }
  }
  context.synchronize();
  const double train_s = seconds_since(start);
  const ht::MemoryStats memory = ht::memory_stats(device);
  const json used = driver_mib(device);
  const std::vector<double> every_loss = losses.to_vector();
  const double loss_sum = std::accumulate(every_loss.begin(), every_loss.end(), 0.0);

  ht::data::Loader test(sets.test, loading);
  const ht::models::Evaluation evaluation = ht::models::evaluate(model, test);
  const ht::amp::Status status = amp.enabled() ? amp.status() : ht::amp::Status{};

  // The step alone, on a batch that is there, last of all: it trains on.
  const double ms = step_ms(context, train_s / static_cast<double>(o.iterations), [&] { step(last); });

  return {{"train_s", train_s},
          {"warm_up_s", warm_up_s},
          {"step_ms", ms},
          {"peak_mib", static_cast<double>(memory.peak) / kMiB},
          {"reserved_mib", static_cast<double>(memory.reserved) / kMiB},
          {"driver_mib", used},
          {"train_loss", loss_sum / static_cast<double>(o.iterations)},
          {"last_loss", every_loss.back()},
          {"test_loss", evaluation.loss},
          {"test_accuracy", 100 * evaluation.accuracy},
          {"test_images", evaluation.images},
          {"loss_scale", status.scale},
          {"applied_steps", amp.enabled() ? status.applied_steps : o.iterations},
          {"skipped_steps", status.skipped_steps},
          {"seed", o.seed},
          {"data", sets.train.source}};
}

// What the device does in products of n x n matrices, TFLOP/s for each method.
json gemm_tflops(ht::Device device, int64_t n) {
  const ht::no_grad guard;
  const ht::Tensor a = ht::Tensor::uniform({n, n}, {7, 1}, -1, 1).to(device);
  json rates;
  for (const std::string& method : bench::kMethods) {
    bench::use_method(method);
    const ht::Var x = a.to(bench::dtype_of(method));
    const double flop = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
    ht::matmul(x, x);  // finds the plan
    const double ms = step_ms(ht::Context::of(device), 0.01, [&] { ht::matmul(x, x); });
    rates[method] = flop / (1e9 * ms);
  }
  return rates;
}

json hardware(const std::string& name, int64_t gemm) {
  const ht::Device device = ht::Device::parse(name);
  json facts{{"device", ht::str(device)}, {"halftone", ht::models::version_text()}};
  if (device.is_cuda()) {
    facts["gpu"] = ht::Context::of(device).cuda().gpu_name;
    facts["libraries"] = ht::cuda_versions();
  }
  if (gemm < 0) gemm = device.is_cuda() ? 8192 : 256;
  if (gemm > 0) facts["gemm_n"] = gemm, facts["gemm_tflops"] = gemm_tflops(device, gemm);
  return facts;
}

int run(int argc, const char* const* argv) {
  CLI::App app("One repeat of the benchmark", "bench_benchmark");
  app.require_subcommand(1);
  RepeatOptions o;
  int64_t gemm = -1;
  CLI::App* repeat = app.add_subcommand("repeat", "train, test, time the step; a line of JSON");
  repeat->add_option("--method", o.method)->check(CLI::IsMember(bench::kMethods));
  repeat->add_option("--batch", o.batch)->check(CLI::PositiveNumber);
  repeat->add_option("--iterations", o.iterations)->check(CLI::PositiveNumber);
  repeat->add_option("--number", o.number, "of this repeat, from 0")->check(CLI::NonNegativeNumber);
  repeat->add_option("--data", o.data, "folder of CIFAR-10's binary files; without it a generated set");
  repeat->add_option("--train-images", o.train_images, "of the generated set")->check(CLI::PositiveNumber);
  repeat->add_option("--test-images", o.test_images)->check(CLI::PositiveNumber);
  repeat->add_option("--width", o.width, "scales the network's channels");
  repeat->add_option("--seed", o.seed);
  repeat->add_option("--tune", o.tune)->check(CLI::IsMember({"off", "fast", "full"}));
  repeat->add_option("--init", o.init, "of the weights: uniform (PyTorch's default) or kaiming (normal, fan-out)")
      ->check(CLI::IsMember({"uniform", "kaiming"}));
  repeat->add_flag("--applied", o.applied, "as many applied steps as --iterations, whatever is skipped");
  repeat->add_flag("--eager", o.eager, "no CUDA graph of the step");
  CLI::App* facts = app.add_subcommand("hardware", "device, versions, rate of matrix products; a line of JSON");
  facts->add_option("--gemm", gemm, "side of the matrices; 0: not measured; by default 8192 on CUDA, 256 on the CPU");
  for (CLI::App* command : {repeat, facts}) command->add_option("--device", o.device, "cpu, cuda or cuda:N");
  if (const auto code = ht::models::parse(app, argc, argv)) return *code;
  std::cout << (*repeat ? run_repeat(o) : hardware(o.device, gemm)).dump() << std::endl;
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  return ht::models::run_program("bench_benchmark", [&] { return run(argc, argv); });
}
