// One training step of the full-width VGG16 on the CPU: forward, loss, backward, SGD with momentum, on random images.
#include "bench/timing.h"
#include "core/parallel.h"
#include "models/vgg.h"
#include "ops/ops.h"
#include "optim/sgd.h"

int main(int argc, char** argv) {
  const bench::Arguments a = bench::parse(argc, argv, "steps", 5);
  ht::set_num_threads(a.threads);
  ht::manual_seed(7);
  ht::nn::Sequential model = ht::models::vgg16();
  ht::optim::Sgd sgd(model.parameters(), {.lr = 0.01, .momentum = 0.9});
  const ht::Var x = ht::Tensor::normal({a.batch, 32, 32, 3}, {7, 1});
  std::vector<int64_t> labels(static_cast<size_t>(a.batch));
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<int64_t>(i % 10);
  const ht::Var y = ht::Tensor::of<int64_t>(labels, {a.batch});
  bench::report_steps("halftone", a, [&] {
    sgd.zero_grad();
    const ht::Var loss = ht::cross_entropy(model(x), y);
    loss.backward();
    sgd.step();
    return loss.item();
  });
}
