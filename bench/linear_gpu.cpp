// Microseconds of the smallest training step (bench/linear_step.h), as it is and as one CUDA graph. A line of JSON a
// measurement, as bench/pytorch_toy.py prints them.
//   bench_linear_gpu [--device cuda] [--modes fp32 tf32 amp] [--windows 7] [--steps 500]
#include <CLI/CLI.hpp>
#include <cstdio>

#include "bench/linear_step.h"
#include "bench/timing.h"

namespace {
void measure(ht::Device device, const std::string& method, bool eager, int windows, int steps) {
  ht::Context& context = ht::Context::of(device);
  bench::LinearStep step(method, device, eager);
  for (int i = 0; i < 20; ++i) step();
  context.synchronize();
  const double first = step.loss();
  const std::vector<double> ms = bench::window_ms(windows, steps, step, [&] { context.synchronize(); });
  std::printf(
      "{\"name\": \"halftone\", \"mode\": \"%s\", \"graph\": %s, \"us\": %.2f, \"spread_us\": %.2f, \"first_loss\": "
      "%.6f, \"last_loss\": %.6f}\n",
      method.c_str(), eager ? "false" : "true", 1000 * ms[ms.size() / 2], 1000 * (ms.back() - ms.front()), first,
      step.loss());
  std::fflush(stdout);
}

int run(int argc, const char* const* argv) {
  CLI::App app("The smallest training step", "bench_linear_gpu");
  std::string device = "cuda";
  std::vector<std::string> modes{"fp32", "tf32", "amp"};
  int windows = 7, steps = 500;
  app.add_option("--modes", modes)->check(CLI::IsMember(bench::kMethods));
  app.add_option("--device", device, "cpu, cuda or cuda:N");
  app.add_option("--windows", windows)->check(CLI::PositiveNumber);
  app.add_option("--steps", steps)->check(CLI::PositiveNumber);
  if (const auto code = ht::models::parse(app, argc, argv)) return *code;
  const ht::Device where = ht::Device::parse(device);
  if (where.is_cuda() && ht::cuda_device_count() == 0) {
    std::puts("SKIPPED: no CUDA device");
    return 0;
  }
  for (const std::string& method : modes) {
    measure(where, method, true, windows, steps);
    if (where.is_cuda()) measure(where, method, false, windows, steps);
  }
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  return ht::models::run_program("bench_linear_gpu", [&] { return run(argc, argv); });
}
