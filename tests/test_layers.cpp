// Layers: names, shapes, initialisation, counters, Sequential.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "core/arithmetic.h"
#include "models/init.h"
#include "models/layers.h"
#include "models/sequential.h"
#include "tests/error_of.h"

using namespace ht;

namespace {
std::vector<std::string> names(const std::vector<std::pair<std::string, Var>>& vars) {
  std::vector<std::string> out;
  for (const auto& [name, var] : vars) out.push_back(name);
  return out;
}

struct Moments {
  double mean = 0, std = 0, low = 0, high = 0;
};
Moments moments(const Tensor& t) {
  const std::vector<double> v = t.to_vector();
  Moments m{.low = v[0], .high = v[0]};
  for (const double x : v) m.mean += x / static_cast<double>(v.size());
  for (const double x : v) {
    m.std += (x - m.mean) * (x - m.mean) / static_cast<double>(v.size());
    m.low = std::min(m.low, x);
    m.high = std::max(m.high, x);
  }
  m.std = std::sqrt(m.std);
  return m;
}

Tensor random(const Shape& shape, uint64_t seed = 5) { return Tensor::normal(shape, {.seed = seed}); }
}  // namespace

TEST_CASE("fans and initialisation follow PyTorch's formulas") {
  manual_seed(1);
  const Tensor w = Tensor::empty({64, 3, 3, 32});  // [out, kh, kw, in]
  CHECK(nn::fan_in(w) == 288);
  CHECK(nn::fan_out(w) == 576);
  CHECK(nn::fan_in(Tensor::empty({7, 5})) == 5);
  CHECK(nn::fan_out(Tensor::empty({7, 5})) == 7);
  CHECK_THROWS_WITH(nn::fan_in(Tensor::empty({7})), "fan_in: a weight needs rank 2 or more (weight [7] f32 cpu)");

  nn::kaiming_normal_(w);
  CHECK(moments(w).std == doctest::Approx(std::sqrt(2.0 / 288)).epsilon(0.02));
  CHECK(std::abs(moments(w).mean) < 0.003);
  nn::kaiming_normal_(w, {.fan = nn::Fan::out});
  CHECK(moments(w).std == doctest::Approx(std::sqrt(2.0 / 576)).epsilon(0.02));
  nn::kaiming_uniform_(w);
  CHECK(moments(w).high == doctest::Approx(std::sqrt(6.0 / 288)).epsilon(0.01));
  nn::xavier_normal_(w);
  CHECK(moments(w).std == doctest::Approx(std::sqrt(2.0 / 864)).epsilon(0.02));
  nn::xavier_uniform_(w, 2);
  CHECK(moments(w).low == doctest::Approx(-2 * std::sqrt(6.0 / 864)).epsilon(0.01));
}

TEST_CASE("each draw takes the next stream: same seed, same weights; no two layers alike") {
  const auto make = [](uint64_t seed) {
    manual_seed(seed);
    nn::Sequential net;
    net.add<nn::Linear>(10, 10);
    net.add<nn::Linear>(10, 10);
    return net;
  };
  const nn::Sequential a = make(3), b = make(3), c = make(4);
  const auto pa = a.parameters(), pb = b.parameters(), pc = c.parameters();
  for (size_t i = 0; i < pa.size(); ++i) {
    CHECK(pa[i].value().to_vector() == pb[i].value().to_vector());
    CHECK(pa[i].value().to_vector() != pc[i].value().to_vector());
  }
  CHECK(pa[0].value().to_vector() != pa[2].value().to_vector());
}

TEST_CASE("Conv2d: names, shapes, default initialisation") {
  manual_seed(2);
  nn::Conv2d conv(16, 24, 3, {.stride = 2, .padding = 1});
  CHECK(names(conv.named_parameters()) == std::vector<std::string>{"weight", "bias"});
  CHECK(conv.weight.shape() == Shape{24, 3, 3, 16});
  CHECK(conv.bias.shape() == Shape{24});
  const double bound = 1 / std::sqrt(16.0 * 9);
  for (const Var& p : conv.parameters()) {
    const Moments m = moments(p.value());
    CHECK(m.high <= bound);
    CHECK(m.low >= -bound);
    CHECK(m.high > 0.7 * bound);
    CHECK(m.low < -0.7 * bound);
  }
  CHECK(moments(conv.weight.value()).std == doctest::Approx(bound / std::sqrt(3.0)).epsilon(0.03));
  CHECK(conv.describe() == "Conv2d(16, 24, kernel 3x3, stride 2, padding 1)");
  CHECK(conv(random({2, 7, 5, 16})).shape() == Shape{2, 4, 3, 24});
  CHECK(conv.state_dict().at("weight").shape() == Shape{24, 16, 3, 3});

  nn::Conv2d plain(3, 8, 1, {.bias = false});
  CHECK(names(plain.named_parameters()) == std::vector<std::string>{"weight"});
  CHECK(plain.describe() == "Conv2d(3, 8, kernel 1x1, no bias)");
  CHECK(plain(random({1, 2, 2, 3})).shape() == Shape{1, 2, 2, 8});
  CHECK_THROWS_WITH(nn::Conv2d(0, 8, 3), "Conv2d: in 0, out 8, kernel 3; all must be positive");
  CHECK_THROWS_AS(nn::Conv2d(3, 8, 3, {.stride = 0}), Error);
}

TEST_CASE("Linear: y = x W^T + b") {
  nn::Linear fc(3, 2);
  fc.weight.value().copy_(Tensor::from({1, 2, 3, 4, 5, 6}, {2, 3}));
  fc.bias.value().copy_(Tensor::from({10, 20}, {2}));
  CHECK(fc(Tensor::from({1, 0, -1}, {1, 3})).value().to_vector() == std::vector<double>{8, 18});
  CHECK(fc.describe() == "Linear(3, 2)");
  CHECK(nn::Linear(3, 2, {.bias = false}).describe() == "Linear(3, 2, no bias)");
  CHECK_THROWS_WITH(nn::Linear(10, 2, {.spatial = {2, 2}}), "Linear: in 10 is not a multiple of the map 2x2");
}

TEST_CASE("a Linear after the Flatten of a 2x2 map keeps its columns in PyTorch's order in files") {
  const int64_t h = 2, w = 2, c = 3, out = 4, n = 2;
  nn::Linear fc(h * w * c, out, {.spatial = {h, w}});
  const StateDict state = fc.state_dict();
  const Tensor file = state.at("weight");  // [out, c * h * w], as PyTorch has it
  CHECK(file.shape() == Shape{out, c * h * w});
  const Tensor x = random({n, h, w, c});
  const std::vector<double> y = fc(flatten(x)).value().to_vector();
  for (int64_t i = 0; i < n; ++i)
    for (int64_t o = 0; o < out; ++o) {
      double sum = fc.bias.value().at(o);
      for (int64_t a = 0; a < h; ++a)
        for (int64_t b = 0; b < w; ++b)
          for (int64_t k = 0; k < c; ++k)
            sum += x.at(((i * h + a) * w + b) * c + k) * file.at(o * c * h * w + (k * h + a) * w + b);
      CHECK(y[static_cast<size_t>(i * out + o)] == doctest::Approx(sum).epsilon(1e-5));
    }
  nn::Linear other(h * w * c, out, {.spatial = {h, w}});
  other.load_state_dict(state);
  CHECK(other.weight.value().to_vector() == fc.weight.value().to_vector());
  CHECK(other.state_dict().at("weight").to_vector() == file.to_vector());
}

TEST_CASE("BatchNorm2d: names, running statistics, count of training forwards") {
  nn::BatchNorm2d bn(2, {.momentum = 0.5});
  CHECK(names(bn.named_parameters()) == std::vector<std::string>{"weight", "bias"});
  CHECK(names(bn.named_buffers()) == std::vector<std::string>{"running_mean", "running_var", "num_batches_tracked"});
  CHECK(bn.num_batches_tracked.value().dtype() == DType::i64);
  CHECK(bn.num_batches_tracked.shape() == Shape{});

  const Tensor x = Tensor::from({1, 10, 2, 20, 3, 30, 6, 60}, {1, 2, 2, 2});  // channels: 1 2 3 6 and 10 20 30 60
  const Var y = bn(x);
  CHECK(bn.num_batches_tracked.item() == 1);
  CHECK(bn.running_mean.value().to_vector() == std::vector<double>{1.5, 15});
  CHECK(bn.running_var.value().at(0) == doctest::Approx(0.5 + 0.5 * 14.0 / 3));  // unbiased
  CHECK(y.value().at(0) == doctest::Approx((1 - 3) / std::sqrt(3.5)).epsilon(1e-4));

  bn.eval();
  const double before = bn.running_var.value().at(1);
  CHECK(bn(x).value().at(0) == doctest::Approx((1 - 1.5) / std::sqrt(bn.running_var.value().at(0))).epsilon(1e-4));
  CHECK(bn.num_batches_tracked.item() == 1);
  CHECK(bn.running_var.value().at(1) == before);
  bn.train();
  bn(x);
  CHECK(bn.num_batches_tracked.item() == 2);
  CHECK(bn.state_dict().at("num_batches_tracked").dtype() == DType::i64);

  CHECK_THROWS_WITH(bn(random({4, 2})), "BatchNorm2d: expects rank 4 (x [4,2] f32 cpu)");
  CHECK(bn.num_batches_tracked.item() == 2);
  nn::BatchNorm1d bn1(2);
  CHECK(bn1(random({4, 2})).shape() == Shape{4, 2});
  CHECK_THROWS_WITH(bn1(x), "BatchNorm1d: expects rank 2 (x [1,2,2,2] f32 cpu)");
  CHECK(bn1.describe() == "BatchNorm1d(2, eps 1e-05, momentum 0.1)");
  CHECK_THROWS_AS(nn::BatchNorm2d(2, {.momentum = 1.5}), Error);
}

TEST_CASE("counters add as integers") {
  const Tensor a = Tensor::full({}, 9007199254740992.0, DType::i64);  // 2^53: a double could not count on
  const uint64_t version = a.version();
  add_into(a, Tensor::full({}, 1, DType::i64));
  CHECK(*a.data<int64_t>() == 9007199254740993);
  CHECK(a.version() > version);
  CHECK_THROWS_AS(add_into(a, Tensor::full({}, 1)), Error);
}

TEST_CASE("pools, activations, dropout, flatten") {
  const Tensor x = Tensor::from({1, -2, 3, -4}, {1, 2, 2, 1});
  CHECK(nn::MaxPool2d(2)(x).value().to_vector() == std::vector<double>{3});
  CHECK(nn::AvgPool2d(2)(x).value().to_vector() == std::vector<double>{-0.5});
  CHECK(nn::GlobalAvgPool2d()(x).shape() == Shape{1, 1, 1, 1});
  CHECK(nn::ReLU()(x).value().to_vector() == std::vector<double>{1, 0, 3, 0});
  CHECK(nn::Sigmoid()(x).value().at(0) == doctest::Approx(1 / (1 + std::exp(-1.0))));
  CHECK(nn::Tanh()(x).value().at(1) == doctest::Approx(std::tanh(-2.0)));
  CHECK(nn::GELU()(x).value().at(2) == doctest::Approx(3 * 0.5 * std::erfc(-3 / std::sqrt(2.0))));
  CHECK(nn::Flatten()(random({2, 3, 4, 5})).shape() == Shape{2, 60});
  CHECK(nn::MaxPool2d(3, 2, 1).describe() == "MaxPool2d(kernel 3, stride 2, padding 1)");
  CHECK_THROWS_AS(nn::MaxPool2d(2, 2, 2), Error);
  CHECK_THROWS_AS(nn::Dropout(1.0), Error);

  manual_seed(9);
  nn::Dropout drop(0.25);
  const Tensor ones = Tensor::full({1000}, 1);
  const auto once = drop(ones).value().to_vector(), twice = drop(ones).value().to_vector();
  CHECK(once != twice);
  const auto zeros = std::count(once.begin(), once.end(), 0.0);
  CHECK(zeros > 180);
  CHECK(zeros < 320);
  drop.eval();
  CHECK(drop(ones).value().to_vector() == ones.to_vector());
}

TEST_CASE("Sequential: numbers, names, moves, prints") {
  nn::Sequential inner;
  inner.add<nn::Linear>(4, 3, nn::LinearOptions{.bias = false});
  inner.add<nn::ReLU>();
  const Var weight = inner.parameters()[0];
  nn::Sequential net;
  net.append(std::move(inner), "body");
  nn::Linear& head = net.append(nn::Linear(3, 2), "head");
  CHECK(names(net.named_parameters()) == std::vector<std::string>{"body.0.weight", "head.weight", "head.bias"});
  CHECK(net.parameters()[0].state() == weight.state());  // moved, not copied
  CHECK(net(random({5, 4})).shape() == Shape{5, 2});
  CHECK(&net["head"] == &head);
  CHECK(&net[1] == &head);
  CHECK(net.describe() ==
        "Sequential(\n  (body): Sequential(\n    (0): Linear(4, 3, no bias)\n    (1): ReLU()\n  )\n"
        "  (head): Linear(3, 2)\n)");
  CHECK(nn::Sequential().describe() == "Sequential()");
  CHECK(error_of([&] { net.append(nn::ReLU(), "head"); }) == "Sequential: the name 'head' is taken");
  CHECK(error_of([&] { net.append(nn::ReLU(), "a.b"); }) == "Sequential: the name 'a.b' has a dot");
  CHECK(error_of([&] { net["tail"]; }) == "Sequential: no child is named 'tail'");
  CHECK(error_of([&] { net[2]; }) == "Sequential: child 2 of 2");

  nn::Sequential moved = std::move(net);
  moved.eval();
  CHECK(!head.training());
}
