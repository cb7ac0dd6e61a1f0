// One list of cases for two libraries: bench/ops_cpu.cpp and bench/ops_libtorch.cpp each time it, so that both do the
// same work. Lib holds what the libraries spell differently; the other names are found by the arguments' namespace.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "bench/timing.h"

namespace bench {

template <class Var>
struct OpCase {
  std::string name;
  std::vector<Var> leaves;  // those that want a gradient; none: the case has no backward
  std::function<Var()> run;
};

// The sizes are those of VGG16's layers on `batch` CIFAR-10 images, or about as many elements.
template <class Lib>
std::vector<OpCase<typename Lib::Var>> op_cases(int64_t batch) {
  using Var = typename Lib::Var;
  std::vector<OpCase<Var>> cases;
  const auto add_case = [&](std::string name, std::vector<Var> leaves, std::function<Var()> run) {
    for (const Var& leaf : leaves) leaf.set_requires_grad(true);
    cases.push_back({std::move(name), std::move(leaves), std::move(run)});
  };

  struct Layer {
    int64_t size, in, out;
  };
  for (const auto [size, in, out] : {Layer{32, 3, 64}, {32, 64, 64}, {16, 128, 128}, {8, 256, 256}, {2, 512, 512}}) {
    const Var w = Lib::conv_weight(out, 3, in), data = Lib::image(batch, size, in);
    const std::string s = std::to_string(size);
    std::vector<Var> leaves{w};
    if (in != 3) leaves.push_back(data);  // the first layer's input is data
    add_case("conv2d " + s + "x" + s + " " + std::to_string(in) + "->" + std::to_string(out), leaves,
             [=] { return Lib::conv2d(data, w, 1); });
  }

  const Var image = Lib::image(batch, 32, 64);
  const Var gamma = Lib::randn({64}), beta = Lib::randn({64}), mean_of = Lib::randn({64}), var_of = Lib::randn({64});
  add_case("batch_norm", {image, gamma, beta}, [=] { return Lib::batch_norm(image, gamma, beta, mean_of, var_of); });
  add_case("relu", {image}, [=] { return relu(image); });
  add_case("max_pool2d", {image}, [=] { return Lib::max_pool2d(image); });
  add_case("avg_pool2d", {image}, [=] { return Lib::avg_pool2d(image); });

  const Var features = Lib::randn({batch, 512}), weight = Lib::randn({4096, 512}), bias = Lib::randn({4096});
  add_case("linear 512->4096", {features, weight, bias}, [=] { return linear(features, weight, bias); });
  const Var a = Lib::randn({512, 512}), b = Lib::randn({512, 512});
  add_case("matmul 512", {a, b}, [=] { return matmul(a, b); });

  const int64_t rows = batch * 64;  // as many elements as the image has
  const Var x = Lib::randn({rows, 1024}), y = Lib::randn({rows, 1024}), row = Lib::randn({1024});
  const Var labels = Lib::labels(rows, 1024);
  add_case("softmax", {x}, [=] { return softmax(x, -1); });
  add_case("log_softmax", {x}, [=] { return log_softmax(x, -1); });
  add_case("cross_entropy", {x}, [=] { return Lib::cross_entropy(x, labels); });
  add_case("mse_loss", {x, y}, [=] { return mse_loss(x, y); });
  add_case("add row", {x, row}, [=] { return add(x, row); });
  add_case("mul", {x, y}, [=] { return mul(x, y); });
  add_case("exp", {x}, [=] { return exp(x); });
  add_case("tanh", {x}, [=] { return tanh(x); });
  add_case("sigmoid", {x}, [=] { return sigmoid(x); });
  add_case("gelu", {x}, [=] { return gelu(x); });
  add_case("dropout", {x}, [=] { return dropout(x, 0.5, true); });
  add_case("cast f16", {x}, [=] { return Lib::to_f16(x); });
  add_case("transpose", {x}, [=] { return Lib::transpose(x); });
  add_case("cat", {x, y}, [=] { return cat(std::vector<Var>{x, y}, 1); });
  add_case("sum all", {x}, [=] { return sum(x); });
  add_case("sum last axis", {x}, [=] { return Lib::sum(x, -1); });
  add_case("sum first axis", {x}, [=] { return Lib::sum(x, 0); });
  const Var narrow = Lib::randn({rows * 64, 16});
  add_case("sum last axis of 16", {narrow}, [=] { return Lib::sum(narrow, -1); });
  add_case("mean", {x}, [=] { return mean(x); });
  add_case("var", {x}, [=] { return var(x); });

  std::vector<Var> weights;
  for (int i = 0; i < 4; ++i) {
    weights.push_back(Lib::randn({512, 4608}));
    weights.back().set_requires_grad(true);
    sum(weights.back()).backward();
  }
  add_case("sgd step", {}, [sgd = Lib::sgd(weights)] { return sgd->step(), Var(); });
  return cases;
}

// Prints the median milliseconds of each case, forward (recording nothing) and with backward, as one JSON line. After
// two calls to warm up, a case is repeated for about `last` milliseconds.
template <class Lib>
void report_ops(const char* name, const Arguments& a) {
  const auto measure = [&](auto&& f) {
    f();
    const double once = time_ms(f);
    return median_ms(std::clamp(static_cast<int>(a.last / once), 1, 1000), f);
  };
  std::printf("{\"name\": \"%s\", \"batch\": %d, \"threads\": %d, \"ms\": {", name, a.batch, a.threads);
  const char* separator = "";
  const auto print = [&](const std::string& what, double ms) {
    std::printf("%s\"%s\": %.5f", separator, what.c_str(), ms);
    separator = ", ";
  };
  for (const auto& c : op_cases<Lib>(a.batch)) {
    {
      const typename Lib::NoGrad guard;
      print(c.name, measure([&] { c.run(); }));
    }
    if (c.leaves.empty()) continue;
    const auto seed = Lib::ones_like(c.run());
    print(c.name + " + backward", measure([&] {
            c.run().backward(seed);
            for (const auto& leaf : c.leaves) Lib::zero_grad(leaf);
          }));
  }
  std::printf("}}\n");
}

}  // namespace bench
