// Shared by the benchmarks: the clock, and of those on the CPU arguments and the JSON lines that bench/compare_cpu.py
// reads.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace bench {

struct Arguments {
  int batch, threads, last;
};

// `<program> [batch = 32] [threads = 2] [last]`, where `last` is named and has a default. Ends the program on others.
inline Arguments parse(int argc, char** argv, const char* last, int fallback) {
  const auto number = [&](int i, int otherwise) {
    const int value = argc > i ? std::atoi(argv[i]) : otherwise;
    if (value < 1 || argc > 4) {
      std::fprintf(stderr, "usage: %s [batch] [threads] [%s], each at least 1\n", argv[0], last);
      std::exit(2);
    }
    return value;
  };
  return {number(1, 32), number(2, 2), number(3, fallback)};
}

template <class F>
double time_ms(F&& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

// The median over `n` calls.
template <class F>
double median_ms(int n, F&& f) {
  std::vector<double> ms;
  for (int i = 0; i < n; ++i) ms.push_back(time_ms(f));
  std::sort(ms.begin(), ms.end());
  return ms[ms.size() / 2];
}

// Milliseconds a call of `step` in each of `windows` windows of `steps` calls, in ascending order; `wait` waits for
// what they queued.
template <class Step, class Wait>
std::vector<double> window_ms(int windows, int steps, Step&& step, Wait&& wait) {
  std::vector<double> ms;
  for (int w = 0; w < windows; ++w)
    ms.push_back(time_ms([&] {
                   for (int i = 0; i < steps; ++i) step();
                   wait();
                 }) /
                 steps);
  std::sort(ms.begin(), ms.end());
  return ms;
}

// Runs one step to warm up, then `last` timed ones; `step` returns the loss.
template <class Step>
void report_steps(const char* name, const Arguments& a, Step&& step) {
  double loss = step();
  const double ms = median_ms(a.last, [&] { loss = step(); });
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf(
      "{\"name\": \"%s\", \"batch\": %d, \"threads\": %d, \"median_ms\": %.2f, \"images_per_s\": %.2f, "
      "\"peak_mib\": %.0f, \"loss\": %.4f}\n",
      name, a.batch, a.threads, ms, 1000.0 * a.batch / ms, static_cast<double>(usage.ru_maxrss) / 1024, loss);
}

}  // namespace bench
