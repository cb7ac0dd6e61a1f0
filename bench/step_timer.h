// Shared by the training benchmarks: times steps and prints one JSON line that bench/compare_cpu.py reads.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace bench {

struct Arguments {
  int batch, threads, steps;
};

// `<program> [batch] [threads] [steps]`, by default 32 2 5.
inline Arguments parse(int argc, char** argv) {
  const auto number = [&](int i, int fallback) {
    const int value = argc > i ? std::atoi(argv[i]) : fallback;
    if (value < 1 || argc > 4) {
      std::fprintf(stderr, "usage: %s [batch] [threads] [steps], each at least 1\n", argv[0]);
      std::exit(2);
    }
    return value;
  };
  return {number(1, 32), number(2, 2), number(3, 5)};
}

// Runs one step to warm up, then `steps` timed ones; `step` returns the loss.
template <class Step>
void report(const char* name, const Arguments& a, Step&& step) {
  using Clock = std::chrono::steady_clock;
  double loss = step();
  std::vector<double> ms;
  for (int i = 0; i < a.steps; ++i) {
    const auto begin = Clock::now();
    loss = step();
    ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
  }
  std::sort(ms.begin(), ms.end());
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf(
      "{\"name\": \"%s\", \"batch\": %d, \"threads\": %d, \"median_ms\": %.2f, \"images_per_s\": %.2f, "
      "\"peak_mib\": %.0f, \"loss\": %.4f}\n",
      name, a.batch, a.threads, ms[ms.size() / 2], 1000.0 * a.batch / ms[ms.size() / 2],
      static_cast<double>(usage.ru_maxrss) / 1024, loss);
}

}  // namespace bench
