#include <iostream>

#include "data/loader.h"
#include "data/synthetic.h"
#include "models/vgg.h"
#include "ops/ops.h"
#include "optim/sgd.h"

int main() {
  ht::manual_seed(1);  // first weights
  const auto sets = ht::data::make_synthetic({.train = 2560});
  ht::data::Loader loader(sets.train, {.batch_size = 64, .seed = 1});

  auto model = ht::models::vgg16({.classes = 10, .width = 0.125});
  ht::optim::Sgd sgd(model.parameters(), {.lr = 0.01, .momentum = 0.9});
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (auto [x, y] : loader) {  // x [n, 32, 32, 3], y [n]
      sgd.zero_grad();
      ht::Var loss = ht::cross_entropy(model(x), y);
      loss.backward();
      sgd.step();
      if (sgd.applied_steps() % 20 == 0) std::cout << sgd.applied_steps() << "  " << loss.item() << '\n';
    }
  }
}
