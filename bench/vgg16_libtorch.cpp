// The same step in libtorch as a user would write it (NCHW, 1x1-convolution head): the peer of bench/vgg16_cpu.cpp.
#include <torch/torch.h>

#include "bench/timing.h"

namespace {
torch::nn::Sequential vgg16() {
  torch::nn::Sequential net;
  int channels = 3;
  const auto block = [&](int width, int kernel) {
    net->push_back(
        torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, width, kernel).padding(kernel / 2).bias(false)));
    net->push_back(torch::nn::BatchNorm2d(width));
    net->push_back(torch::nn::ReLU());
    channels = width;
  };
  const int widths[] = {64, 128, 256, 512, 512}, convs[] = {2, 2, 3, 3, 3};
  for (int b = 0; b < 5; ++b) {
    for (int i = 0; i < convs[b]; ++i) block(widths[b], 3);
    net->push_back(torch::nn::MaxPool2d(2));
  }
  block(4096, 1);
  block(4096, 1);
  net->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(4096, 10, 1).bias(false)));
  net->push_back(torch::nn::Flatten());
  return net;
}
}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments a = bench::parse(argc, argv, "steps", 5);
  torch::set_num_threads(a.threads);
  torch::manual_seed(7);
  torch::nn::Sequential model = vgg16();
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  const torch::Tensor x = torch::randn({a.batch, 3, 32, 32});
  const torch::Tensor y = torch::arange(a.batch) % 10;
  bench::report_steps("libtorch", a, [&] {
    sgd.zero_grad();
    const torch::Tensor loss = torch::nn::functional::cross_entropy(model->forward(x), y);
    loss.backward();
    sgd.step();
    return loss.item<double>();
  });
}
