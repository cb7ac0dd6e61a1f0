// The 13 convolutions of VGG16 on CIFAR-10 images, each alone: forward, data gradient and weight gradient. Prints the
// median milliseconds and GFLOP/s of each and their sums (the first layer has no data gradient).
//   bench_conv [batch = 32] [threads = all] [repeats = 7] [dtype = f32]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "core/context.h"
#include "core/parallel.h"
#include "ops/conv2d_kernels.h"

using namespace ht;

namespace {
struct Layer {
  int64_t size, in, out;
};
constexpr Layer kLayers[] = {{32, 3, 64},   {32, 64, 64},  {16, 64, 128}, {16, 128, 128}, {8, 128, 256},
                             {8, 256, 256}, {8, 256, 256}, {4, 256, 512}, {4, 512, 512},  {4, 512, 512},
                             {2, 512, 512}, {2, 512, 512}, {2, 512, 512}};

// Median milliseconds of f after one warm-up call.
template <class F>
double median_ms(int repeats, F&& f) {
  f();
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    f();
    times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[static_cast<size_t>(repeats / 2)];
}

void run(int64_t batch, int repeats, DType dtype) {
  std::printf("batch %ld, %d threads, %s, median of %d: ms (GFLOP/s)\n", static_cast<long>(batch), num_threads(),
              std::string(name_of(dtype)).c_str(), repeats);
  std::printf("%-18s %16s %16s %16s\n", "layer", "forward", "data gradient", "weight gradient");
  double sum[3] = {};
  for (const Layer& l : kLayers) {
    const Conv2dShape s{.n = batch,
                        .h = l.size,
                        .w = l.size,
                        .in = l.in,
                        .out = l.out,
                        .kh = 3,
                        .kw = 3,
                        .oh = l.size,
                        .ow = l.size,
                        .stride = 1,
                        .padding = 1,
                        .dilation = 1};
    const Tensor x = Tensor::normal({batch, l.size, l.size, l.in}, {1, 0}, 0, 1, dtype);
    const Tensor w = Tensor::normal({l.out, 3, 3, l.in}, {1, 1}, 0, 1, dtype);
    const Tensor dy = Tensor::normal({batch, l.size, l.size, l.out}, {1, 2}, 0, 1, dtype);
    const Tensor y = Tensor::empty_like(dy), dx = Tensor::empty_like(x), dw = Tensor::empty_like(w);
    const double ms[3] = {median_ms(repeats, [&] { conv2d_forward_cpu(s, x, w, {}, y); }),
                          l.in == 3 ? 0 : median_ms(repeats, [&] { conv2d_dgrad_cpu(s, dy, w, dx); }),
                          median_ms(repeats, [&] { conv2d_wgrad_cpu(s, dy, x, dw); })};
    const double gflop = 2e-9 * static_cast<double>(y.numel() * s.taps() * s.in);
    std::printf("%2ldx%-2ld %4ld -> %-4ld", static_cast<long>(l.size), static_cast<long>(l.size),
                static_cast<long>(l.in), static_cast<long>(l.out));
    for (int i = 0; i < 3; ++i) {
      std::printf(" %8.2f (%5.1f)", ms[i], ms[i] > 0 ? 1e3 * gflop / ms[i] : 0);
      sum[i] += ms[i];
    }
    std::printf("\n");
  }
  std::printf("%-18s %8.2f %16.2f %16.2f   all %.1f ms\n", "sum", sum[0], sum[1], sum[2], sum[0] + sum[1] + sum[2]);
}
}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc > 2 && std::atoi(argv[2]) > 0) set_num_threads(std::atoi(argv[2]));
    run(argc > 1 ? std::max(std::atoi(argv[1]), 1) : 32, argc > 3 ? std::max(std::atoi(argv[3]), 1) : 7,
        argc > 4 ? parse_dtype(argv[4]) : DType::f32);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_conv: %s\n", e.what());
    return 1;
  }
}
