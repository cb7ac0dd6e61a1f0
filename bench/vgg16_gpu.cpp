// One training step of VGG16 on the GPU, the data on it: forward, loss, backward, SGD with momentum. The twin of
// bench/pytorch_vgg16.py: same protocol, same JSON lines. The first line also tells how long the process took to its
// first completed step (with a warm plan cache: what a user waits for), and the parts of that: device, network, step.
// The step is one CUDA graph, unless --eager. With --whole it also makes each batch (bench/vgg16_step.h).
//   bench_vgg16_gpu [--whole] [--eager] [--modes fp32 tf32 fp16 amp bf16] [--batches 128 ...] [--windows 7] [--steps
//   20]
//                   [--tune off|fast|full] [--memory speed|low]
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>

#include "bench/timing.h"
#include "bench/vgg16_step.h"
#include "core/cuda_context.h"
#include "core/tuning.h"

namespace {
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Since the process was started, by the kernel's clock (in steps of 10 ms).
double seconds_since_exec() {
  std::ifstream file("/proc/self/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::istringstream fields(text.substr(text.rfind(')') + 1));  // the name before it may hold spaces
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;  // proc(5): field 22 is the start in ticks after boot
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) -
         std::stod(field) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

void measure(const std::string& mode, int64_t batch, int windows, int steps, bool whole, bool eager) {
  static bool first_line = true;
  const ht::Device device = ht::Device::cuda();
  const auto begin = Clock::now();
  ht::Context& context = ht::Context::of(device);
  const double context_s = seconds_since(begin);
  ht::empty_cache(device);
  ht::reset_peak_memory(device);
  const auto start = Clock::now();
  bench::Vgg16Step step(mode, batch, whole, eager);
  const double model_s = seconds_since(start);
  step();
  context.synchronize();
  const double first_s = seconds_since(start);
  const std::string from_exec = std::exchange(first_line, false)
                                    ? ht::str(", \"process_to_first_step_s\": ", seconds_since_exec(),
                                              ", \"context_s\": ", context_s, ", \"model_s\": ", model_s)
                                    : "";
  for (int i = 0; i < 9; ++i) step();
  context.synchronize();
  const std::vector<double> ms = bench::window_ms(windows, steps, step, [&] { context.synchronize(); });
  const ht::MemoryStats memory = ht::memory_stats(device);
  std::printf(
      "{\"name\": \"halftone\", \"mode\": \"%s\", \"whole\": %s, \"eager\": %s, \"batch\": %lld, \"ms\": %.4f, "
      "\"spread_ms\": %.4f, "
      "\"images_per_s\": %.0f, \"peak_mib\": %zu, \"reserved_mib\": %zu, "
      "\"workspace_mib\": %zu, \"first_step_s\": %.2f%s}\n",
      mode.c_str(), whole ? "true" : "false", eager ? "true" : "false", static_cast<long long>(batch),
      ms[ms.size() / 2], ms.back() - ms.front(), 1000.0 * static_cast<double>(batch) / ms[ms.size() / 2],
      memory.peak >> 20, memory.reserved >> 20,
      (context.cuda().main.workspace.bytes() + context.cuda().side.workspace.bytes()) >> 20, first_s,
      from_exec.c_str());
  std::fflush(stdout);
}
}  // namespace

int main(int argc, char** argv) {
  CLI::App app("VGG16 training step on the GPU");
  std::vector<std::string> modes{"fp32", "tf32"};
  std::vector<int64_t> batches{128, 256, 512, 1024, 2048};
  int windows = 7, steps = 20;
  bool whole = false, eager = false;
  std::string tune = "fast", memory = "speed";
  app.add_option("--modes", modes)->check(CLI::IsMember(bench::kMethods));
  app.add_option("--batches", batches)->check(CLI::PositiveNumber);
  app.add_option("--windows", windows)->check(CLI::PositiveNumber);
  app.add_option("--steps", steps)->check(CLI::PositiveNumber);
  app.add_option("--tune", tune)->check(CLI::IsMember({"off", "fast", "full"}));
  app.add_option("--memory", memory)->check(CLI::IsMember({"speed", "low"}));
  app.add_flag("--whole", whole, "also makes each batch from u8 images, Nesterov momentum, decay, a schedule");
  app.add_flag("--eager", eager, "no CUDA graph of the step");
  CLI11_PARSE(app, argc, argv);
  if (ht::cuda_device_count() == 0) {
    std::puts("SKIPPED: no CUDA device");
    return 0;
  }
  try {
    ht::set_tune_mode(ht::parse_tune_mode(tune));
    ht::set_memory_mode(ht::parse_memory_mode(memory));
    for (const std::string& mode : modes)
      for (const int64_t batch : batches) measure(mode, batch, windows, steps, whole, eager);
  } catch (const ht::Error& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 1;
  }
}
