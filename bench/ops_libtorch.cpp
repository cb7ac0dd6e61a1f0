// The same cases in libtorch, images in channels_last (NHWC) memory as Halftone has them: the peer of
// bench/ops_cpu.cpp.
#include <torch/torch.h>

#include "bench/ops.h"

namespace {
constexpr auto kNhwc = torch::MemoryFormat::ChannelsLast;

struct Libtorch {
  using Var = torch::Tensor;
  using NoGrad = torch::NoGradGuard;

  static Var randn(torch::IntArrayRef shape) { return torch::randn(shape); }
  static Var image(int64_t n, int64_t size, int64_t channels) {
    return randn({n, channels, size, size}).contiguous(kNhwc);
  }
  static Var conv_weight(int64_t out, int64_t kernel, int64_t in) {
    return randn({out, in, kernel, kernel}).contiguous(kNhwc);
  }
  static Var labels(int64_t n, int64_t classes) { return torch::arange(n) % classes; }
  static Var ones_like(const Var& y) { return torch::ones_like(y); }
  static void zero_grad(const Var& leaf) { leaf.mutable_grad() = Var(); }

  static Var conv2d(const Var& x, const Var& w, int64_t padding) { return torch::conv2d(x, w, {}, 1, padding); }
  static Var batch_norm(const Var& x, const Var& gamma, const Var& beta, const Var& mean, const Var& var) {
    return torch::batch_norm(x, gamma, beta, mean, var, true, 0.1, 1e-5, true);
  }
  static Var max_pool2d(const Var& x) { return torch::max_pool2d(x, 2); }
  static Var avg_pool2d(const Var& x) { return torch::avg_pool2d(x, 2); }
  static Var cross_entropy(const Var& x, const Var& labels) { return torch::cross_entropy_loss(x, labels); }
  static Var sum(const Var& x, int axis) { return torch::sum(x, axis); }
  static Var transpose(const Var& x) { return x.transpose(0, 1).contiguous(); }
  static Var to_f16(const Var& x) { return x.to(torch::kHalf); }
  static auto sgd(const std::vector<Var>& weights) {
    return std::make_shared<torch::optim::SGD>(weights, torch::optim::SGDOptions(0.01).momentum(0.9));
  }
};
}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments a = bench::parse(argc, argv, "milliseconds a case", 100);
  torch::set_num_threads(a.threads);
  torch::manual_seed(7);
  bench::report_ops<Libtorch>("libtorch", a);
}
