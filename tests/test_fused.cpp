// Fused ops: the same numbers as their composition, and Sequential's use of them.
#include <doctest/doctest.h>

#include "autograd/tape.h"
#include "models/layers.h"
#include "models/sequential.h"
#include "models/vgg.h"
#include "ops/ops.h"
#include "ops/registry.h"

using namespace ht;

namespace {
std::vector<std::string> ops_on_tape() {
  std::vector<std::string> names;
  const std::shared_ptr<Tape> tape = Tape::current();
  for (const Tape::Node& node : tape->nodes()) names.emplace_back(node.op->name());
  return names;
}

// Overrides one op, as amp does for a user's list.
struct Overriding final : InputHook {
  std::string_view op;
  explicit Overriding(std::string_view name) : op(name) { set_input_hook(this); }
  ~Overriding() override { set_input_hook(nullptr); }
  void before(Op&, std::vector<Var>&) override {}
  bool overrides(std::string_view name) const override { return name == op; }
};

nn::Sequential small_net() {
  manual_seed(3);
  nn::Sequential net;
  net.add<nn::Conv2d>(3, 8, 3, nn::ConvOptions{.padding = 1, .bias = false});
  net.add<nn::BatchNorm2d>(8);
  net.add<nn::ReLU>();
  net.add<nn::Conv2d>(8, 8, 3, nn::ConvOptions{.padding = 1});
  net.add<nn::BatchNorm2d>(8);
  net.add<nn::ReLU>();
  net.add<nn::MaxPool2d>(2);
  net.add<nn::BatchNorm2d>(8);
  net.add<nn::ReLU>();
  net.add<nn::MaxPool2d>(2);
  net.add<nn::Flatten>();
  net.add<nn::BatchNorm1d>(8);
  net.add<nn::ReLU>();
  net.add<nn::BatchNorm1d>(8);
  return net;
}
}  // namespace

TEST_CASE("fused: forward, gradients and statistics equal the composition bit for bit on the CPU") {
  const Shape c{5};
  for (const DType t : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const DType kept = t == DType::f64 ? DType::f64 : DType::f32;
    const Tensor x = Tensor::normal({3, 7, 5, 4}, {1, 0}, 0, 1, t), w = Tensor::normal({5, 3, 3, 4}, {1, 1}, 0, 1, t);
    const Tensor b = Tensor::normal(c, {1, 2}, 0, 1, t), g = Tensor::uniform(c, {1, 3}, 0.5, 1.5, kept);
    const Tensor beta = Tensor::normal(c, {1, 4}, 0, 1, kept);
    struct Result {
      Tensor y;
      std::vector<Tensor> rest;
    };
    const auto run = [&](bool fused, bool pool) {
      const RunningStats running{Tensor::zeros(c, kept), Tensor::full(c, 1, kept), Tensor::zeros({}, DType::i64)};
      const std::vector<Var> in{{x, true}, {w, true}, {b, true}, {g, true}, {beta, true}};
      Var y;
      if (fused) {
        y = pool ? conv_bn_relu_pool(in[0], in[1], in[2], in[3], in[4], running, {.padding = 1})
                 : conv_bn_relu(in[0], in[1], in[2], in[3], in[4], running, {.padding = 1});
      } else {
        y = relu(batch_norm(conv2d(in[0], in[1], in[2], {.padding = 1}), in[3], in[4], running));
        if (pool) y = max_pool2d(y);
      }
      Result r{y.value(), {running.mean, running.var, running.num_batches_tracked}};
      y.backward(Tensor::uniform(y.shape(), {1, 5}, -1, 1, t));
      for (const Var& v : in) r.rest.push_back(v.grad());
      return r;
    };
    for (const bool pool : {false, true}) {
      const Result a = run(true, pool), e = run(false, pool);
      CHECK(a.y.to_vector() == e.y.to_vector());
      for (size_t i = 0; i < a.rest.size(); ++i) CHECK(a.rest[i].to_vector() == e.rest[i].to_vector());
      CHECK(a.rest[2].item() == 1);
    }
  }
}

TEST_CASE("fused: only the wanted gradients are computed") {
  const Var x(Tensor::normal({2, 4, 4, 2}, {2, 0})), w(Tensor::normal({3, 1, 1, 2}, {2, 1}));
  const Var gamma(Tensor::full({3}, 1), true), beta(Tensor::zeros({3}));
  sum(conv_bn_relu(x, w, {}, gamma, beta, {})).backward();
  CHECK(gamma.grad());
  CHECK(!w.grad());
  CHECK(!beta.grad());
}

TEST_CASE("fused: errors name the part and its arguments") {
  const Var x(Tensor::zeros({2, 4, 4, 2})), g(Tensor::full({3}, 1)), b(Tensor::zeros({3}));
  const auto error = [&](auto f) -> std::string {
    try {
      f();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  CHECK(error([&] { bn_relu(x, g, b, {}); }) ==
        "batch_norm: gamma must be [2] f32 cpu (gamma [3] f32 cpu, x [2,4,4,2] f32 cpu)");
  CHECK(error([&] {
          bn_relu_pool(Tensor::zeros({4, 3}), g, b, {});
        }) == "max_pool2d: x must be [n, h, w, c], not of rank 2 (x [4,3] f32 cpu)");
  CHECK(error([&] {
          conv_bn_relu(x, Tensor::zeros({3, 1, 1, 4}), {}, g, b, {});
        }).find("conv2d: x has 2 channels") == 0);
}

TEST_CASE("Sequential: adjacent layers run as one op, with the same numbers as one by one") {
  nn::Sequential net = small_net(), apart = small_net();
  const Tensor x = Tensor::normal({4, 4, 4, 3}, {4, 0});
  Var y(x);
  for (const auto& [name, layer] : apart.children()) y = layer->forward(y);
  const std::vector<std::string> single = ops_on_tape();
  CHECK(single.size() == 14);
  const Var loss_apart = sum(y);
  const Tensor expected = y.value();
  loss_apart.backward();
  y = {};

  const Var z = net(x);
  CHECK(ops_on_tape() == std::vector<std::string>{"conv_bn_relu", "conv_bn_relu_pool", "bn_relu_pool", "flatten",
                                                  "bn_relu", "batch_norm"});
  CHECK(z.value().to_vector() == expected.to_vector());
  sum(z).backward();
  const auto a = net.named_parameters(), b = apart.named_parameters();
  for (size_t i = 0; i < a.size(); ++i) CHECK(a[i].second.grad().to_vector() == b[i].second.grad().to_vector());
  const auto sa = net.state_dict(), sb = apart.state_dict();
  for (const auto& [key, t] : sa) CHECK(t.to_vector() == sb.at(key).to_vector());
  CHECK(sa.at("1.num_batches_tracked").item() == 1);
}

TEST_CASE("Sequential: a fused op gives way where a part is overridden") {
  nn::Sequential net = small_net();
  const Tensor x = Tensor::normal({4, 4, 4, 3}, {4, 0});
  {
    const Overriding hook("max_pool2d");
    const Var y = net(x);
    CHECK(ops_on_tape() == std::vector<std::string>{"conv_bn_relu", "conv_bn_relu", "max_pool2d", "bn_relu",
                                                    "max_pool2d", "flatten", "bn_relu", "batch_norm"});
  }
  {
    const Overriding hook("conv2d");
    const Var y = net(x);
    CHECK(ops_on_tape() == std::vector<std::string>{"conv2d", "bn_relu", "conv2d", "bn_relu_pool", "bn_relu_pool",
                                                    "flatten", "bn_relu", "batch_norm"});
  }
}

TEST_CASE("Sequential: a layer derived from one of the table keeps its own forward") {
  struct Leaky final : nn::ReLU {
    Var forward(const Var& x) override { return neg(x); }
  };
  nn::Sequential net;
  net.add<nn::BatchNorm2d>(2);
  net.append(Leaky());
  const Var y = net(Tensor::normal({2, 2, 2, 2}, {5, 0}));
  CHECK(ops_on_tape() == std::vector<std::string>{"batch_norm", "neg"});
}

TEST_CASE("vgg16: thirteen convolutions and two of the head run fused") {
  nn::Sequential net = models::vgg16({.classes = 10, .width = 0.125});
  const Var y = net(Tensor::normal({2, 32, 32, 3}, {6, 0}));
  CHECK(ops_on_tape().size() == 17);  // 15 fused, the last convolution, flatten
}
