// A linear layer learns random targets: the smallest training loop.
#include <cstdio>

#include "halftone.h"

int main() {
  ht::manual_seed(0);
  ht::nn::Linear model(1024, 512);
  ht::optim::Sgd sgd(model.parameters(), {.lr = 1e-3});
  ht::amp::Amp amp = ht::amp::initialize(model, sgd, {.level = ht::amp::O1});
  const ht::Var x = ht::Tensor::normal({64, 1024}, {.seed = 1});
  const ht::Var y = ht::Tensor::normal({64, 512}, {.seed = 2});

  for (int step = 0; step < 500; ++step) {
    sgd.zero_grad();
    const ht::Var loss = ht::mse_loss(model(x), y);
    amp.backward(loss);
    sgd.step();
    if (step % 50 == 0 || step == 499) std::printf("step %3d  loss %.6f\n", step, loss.item());
  }
}
