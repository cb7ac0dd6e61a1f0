// The smallest training there is, examples/linear_regression.cpp and, with amp, its two-line twin, for the benchmarks:
// Linear 1024 -> 512, batch 64, mean squared error, SGD. Each step copies its loss out.
#pragma once

#include <string>

#include "bench/methods.h"
#include "core/captured_step.h"
#include "halftone.h"

namespace bench {

class LinearStep {
 public:
  LinearStep(const std::string& method, ht::Device device, bool eager)
      : eager_(eager),
        model_(make_model(method, device)),
        sgd_(model_.parameters(), {.lr = 1e-3}),
        amp_(ht::amp::initialize(model_, sgd_, {.level = level_of(method)})),
        x_(ht::Tensor::normal({64, 1024}, {.seed = 1}).to(device)),
        y_(ht::Tensor::normal({64, 512}, {.seed = 2}).to(device)),
        loss_(ht::Tensor::zeros({}, ht::DType::f32, device)),
        captured_(device, [this](std::span<const ht::Tensor>) { work(); }) {}

  void operator()() { eager_ ? work() : captured_({}); }
  double loss() const { return loss_.item(); }

 private:
  static ht::nn::Linear make_model(const std::string& method, ht::Device device) {
    use_method(method);
    ht::manual_seed(0);
    ht::nn::Linear model(1024, 512);
    model.to(device);
    return model;
  }
  void work() {
    sgd_.zero_grad();
    const ht::Var loss = ht::mse_loss(model_(x_), y_);
    amp_.backward(loss);
    sgd_.step();
    loss_.copy_(loss.value());
  }

  bool eager_;
  ht::nn::Linear model_;
  ht::optim::Sgd sgd_;
  ht::amp::Amp amp_;
  ht::Var x_, y_;
  ht::Tensor loss_;
  ht::CapturedStep captured_;
};

}  // namespace bench
