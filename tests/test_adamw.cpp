// AdamW: by hand and against PyTorch 1.13.
#include <doctest/doctest.h>

#include "optim/adamw.h"
#include "tests/optim_helpers.h"

using namespace ht;
using namespace ht::optim;

namespace {
void check_adamw(const AdamWOptions& o, std::initializer_list<double> expected, DType dtype = DType::f32) {
  const Var p = start(dtype);
  AdamW adamw({p}, o);
  train(adamw, p, dtype);
  check_close(p, expected, dtype == DType::f64 ? 1e-14 : 1e-6);
}
}  // namespace

TEST_CASE("adamw: by hand and 20 steps as PyTorch") {
  // The first step moves by lr whatever the gradient's size: m / sqrt(s) is its sign.
  const Var p = parameter({1, 1, 1}, DType::f64);
  AdamW adamw({p}, {.lr = 0.1, .eps = 0, .weight_decay = 0.5});
  set_grad(p, {1e-3, -20, 3}, DType::f64);
  adamw.step();
  check_close(p, {0.85, 1.05, 0.85}, 1e-12);

  check_adamw({.lr = 0.01}, {-1.9354573488235474, 0.3143477737903595, -1.3873640298843384, 0.90128761529922485,
                             -0.73483419418334961});
  check_adamw(
      {.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-4, .weight_decay = 0.1},
      {-1.8193732500076294, 0.30744364857673645, -1.3565807342529297, 0.85930967330932617, -0.6985974907875061});
  check_adamw({.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-4, .weight_decay = 0.1},
              {-1.8193719480272486, 0.30744348133168875, -1.3565801138137437, 0.8593092715583579, -0.69859702979030802},
              DType::f64);
}
