// A small network, and a one-layer training under amp whose gradients a test sets by hand.
#pragma once

#include <limits>

#include "amp/amp.h"
#include "models/layers.h"
#include "models/sequential.h"
#include "optim/sgd.h"

namespace ht {

// Images [n, 4, 4, 3] -> three classes: a convolution, batch norm and a linear layer.
inline nn::Sequential small_network() {
  nn::Sequential net;
  net.add<nn::Conv2d>(3, 8, 3, nn::ConvOptions{.padding = 1});
  net.add<nn::BatchNorm2d>(8);
  net.add<nn::ReLU>();
  net.add<nn::Flatten>();
  net.add<nn::Linear>(8 * 16, 3, nn::LinearOptions{.spatial = {4, 4}});
  return net;
}

// A parameter in a Module, so that amp can be initialised with it.
struct OneParameter : Module {
  explicit OneParameter(Tensor value) { w = register_parameter("w", std::move(value)); }
  Var forward(const Var& x) override { return mul(x, w); }
  std::string describe() const override { return "OneParameter"; }
  Var w;
};

struct AmpRig {
  AmpRig(Device device, std::initializer_list<double> w, const optim::SgdOptions& sgd_options,
         const amp::Options& options)
      : model(Tensor::from(w, {static_cast<int64_t>(w.size())}).to(device)),
        sgd(model.parameters(), sgd_options),
        amp(amp::initialize(model, sgd, options)) {}

  // A backward whose gradient of w is `g` times the loss scale, or what cannot be multiplied, in `dtype`.
  void backward(std::initializer_list<double> g, DType dtype = DType::f32, int id = 0) {
    const Var x = Tensor::from(g, model.w.shape()).to(model.w.device());
    const Var loss = sum(mul(x, model.w));
    if (std::isfinite(loss.item())) return amp.backward(loss, id);
    // A finite loss with a bad gradient: the slope of sqrt at 0 is infinite, and that times 0 is NaN.
    amp.backward(sum(add(model.w, scale(sqrt(scale(model.w, 0)), 0))), id);
    model.w.grad_slot() = x.value().to(dtype);
  }
  void step(std::initializer_list<double> g) {
    sgd.zero_grad();
    backward(g);
    sgd.step();
  }
  std::vector<double> w() const { return model.w.value().to_vector(); }
  double momentum() const { return sgd.state_dict().at("w.momentum_buffer").at(0); }

  OneParameter model;
  optim::Sgd sgd;
  amp::Amp amp;
};

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

inline std::vector<double> bits_of(const Tensor& t) {  // as numbers, NaN told apart from nothing
  const Tensor cpu = t.to(Device::cpu());
  std::vector<double> bytes(cpu.bytes());
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<const uint8_t*>(cpu.data())[i];
  return bytes;
}

}  // namespace ht
