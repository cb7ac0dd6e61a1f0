// Sgd: by hand and against PyTorch 1.13.
#include <doctest/doctest.h>

#include "tests/optim_helpers.h"

using namespace ht;
using namespace ht::optim;

TEST_CASE("sgd: by hand") {
  SUBCASE("plain") {
    const Var p = parameter({1, -2});
    Sgd sgd({p}, {.lr = 0.5});
    set_grad(p, {1, -1});
    sgd.step();
    CHECK(p.value().to_vector() == std::vector<double>{0.5, -1.5});
  }
  SUBCASE("weight decay enters the gradient: w 2, wd 5e-4, g 0.5 give 0.501") {
    const Var p = parameter({2});
    Sgd sgd({p}, {.lr = 1, .momentum = 0.9, .weight_decay = 5e-4});
    set_grad(p, {0.5});
    sgd.step();
    CHECK(sgd.state_dict().at("0.momentum_buffer").item() == doctest::Approx(0.501));
    CHECK(p.item() == doctest::Approx(1.499));
    CHECK(p.grad().item() == 0.5);  // the gradient itself is only read
  }
  SUBCASE("w 2, v 1, momentum 0.9, g 1, lr 0.1 give v 1.9 and w 1.81") {
    const Var p = parameter({2});
    Sgd sgd({p}, {.lr = 0.1, .momentum = 0.9});
    StateDict state = sgd.state_dict();
    state["0.momentum_buffer"] = Tensor::full({1}, 1);
    state["0.step"] = Tensor::full({}, 1, DType::i64);
    sgd.load_state_dict(state);
    set_grad(p, {1});
    sgd.step();
    CHECK(sgd.state_dict().at("0.momentum_buffer").item() == doctest::Approx(1.9));
    CHECK(p.item() == doctest::Approx(1.81));
  }
  SUBCASE("the first step takes the whole gradient, later ones are dampened") {
    const Var p = parameter({0});
    Sgd sgd({p}, {.lr = 1, .momentum = 0.5, .dampening = 0.75});
    set_grad(p, {4});
    sgd.step();  // v = 4
    CHECK(p.item() == -4);
    sgd.step();  // v = 0.5 * 4 + 0.25 * 4 = 3
    CHECK(p.item() == -7);
  }
  SUBCASE("Nesterov looks one step ahead") {
    const Var p = parameter({0});
    Sgd sgd({p}, {.lr = 1, .momentum = 0.5, .nesterov = true});
    set_grad(p, {4});
    sgd.step();  // v = 4, d = 4 + 0.5 * 4
    CHECK(p.item() == -6);
    sgd.step();  // v = 6, d = 4 + 0.5 * 6
    CHECK(p.item() == -13);
  }
  SUBCASE("decoupled decay shrinks the weight and leaves momentum alone") {
    const Var p = parameter({2});
    Sgd sgd({p}, {.lr = 0.5, .momentum = 0.9, .weight_decay = 0.5, .decoupled_weight_decay = true});
    set_grad(p, {1});
    sgd.step();  // 2 * (1 - 0.25) - 0.5 * 1
    CHECK(p.item() == 1);
    CHECK(sgd.state_dict().at("0.momentum_buffer").item() == 1);
  }
  SUBCASE("a hundred small steps survive in FP32, and a half parameter loses them") {
    const Var p = parameter({1}), half = parameter({1}, DType::f16);
    Sgd sgd({p, half}, {.lr = 1e-4});
    for (int t = 0; t < 100; ++t) {
      set_grad(p, {1});
      set_grad(half, {1}, DType::f16);
      sgd.step();
      if (t == 2) CHECK(p.value().to(DType::f16).item() == 0.99951171875);
    }
    CHECK(p.item() == doctest::Approx(0.989998).epsilon(1e-6));
    CHECK(p.value().to(DType::f16).item() == 0.990234375);
    CHECK(half.item() == 1);
  }
}

TEST_CASE("sgd: 20 steps as PyTorch") {
  check_sgd({.lr = 0.1}, {-1.8359375, 0.32812502980232239, -1.5078125, 0.95937496423721313, -0.72500002384185791});
  check_sgd({.lr = 0.1, .weight_decay = 0.05},
            {-1.6569168567657471, 0.29879081249237061, -1.3748136758804321, 0.87588715553283691, -0.65485703945159912});
  check_sgd(
      {.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.05},
      {-0.31143191456794739, 0.25438609719276428, -1.1090849637985229, 0.29059785604476929, -0.27212142944335938});
  check_sgd({.lr = 0.05, .momentum = 0.9, .nesterov = true, .weight_decay = 5e-4},
            {-1.3338321447372437, 0.31438106298446655, -1.5975450277328491, 0.7785760760307312, -0.66597211360931396});
  check_sgd({.lr = 0.05, .momentum = 0.9, .nesterov = true, .weight_decay = 5e-4},
            {-1.3338320891670585, 0.31438106185396131, -1.5975450455367171, 0.77857598122079741, -0.66597218967691529},
            DType::f64);
  // PyTorch's SGD has no decoupled decay: these are mul_ and add_ in double by hand.
  check_sgd({.lr = 0.1, .momentum = 0.9, .weight_decay = 0.05, .decoupled_weight_decay = true},
            {-0.58737994792906389, 0.27517232446956258, -1.5933901317124557, 0.51726738538113726, -0.53249783312747656},
            DType::f64);
}
