// The networks: parameter counts, PyTorch's names, files, and that they learn.
#include <doctest/doctest.h>

#include <cmath>

#include "models/layers.h"
#include "models/report.h"
#include "models/vgg.h"
#include "optim/sgd.h"

using namespace ht;

namespace {
bool has(const StateDict& state, const std::string& name) { return state.contains(name); }
}  // namespace

TEST_CASE("the seed's VGG16 has 33.65 million parameters") {
  const nn::Sequential net = models::vgg16();
  CHECK(net.parameter_count() == 33'650'624);
  size_t convolutions = 0, norms = 0;
  for (const auto& [name, p] : net.named_parameters()) {
    convolutions += p.shape().rank() == 4;
    norms += name.ends_with("bias");  // only batch norm has one
  }
  CHECK(convolutions == 16);
  CHECK(norms == 15);
  const StateDict state = net.state_dict();
  CHECK(state.at("features.0.weight").shape() == Shape{64, 3, 3, 3});
  CHECK(state.at("features.40.weight").shape() == Shape{512, 512, 3, 3});
  CHECK(state.at("classifier.0.weight").shape() == Shape{4096, 512, 1, 1});
  CHECK(state.at("classifier.6.weight").shape() == Shape{10, 4096, 1, 1});
  CHECK(!has(state, "features.0.bias"));
}

TEST_CASE("vgg16: shapes, width, errors") {
  nn::Sequential net = models::vgg16({.classes = 7, .width = 0.03});
  CHECK(net.named_parameters()[0].second.shape() == Shape{8, 3, 3, 3});  // 64 * 0.03 = 1.9, at least 8
  net.eval();
  CHECK(net(Tensor::normal({1, 32, 32, 3}, {})).shape() == Shape{1, 7});
  CHECK(models::scale_channels(64, 0.125) == 8);
  CHECK(models::scale_channels(512, 0.3) == 152);
  CHECK(models::scale_channels(64, 1) == 64);
  CHECK_THROWS_WITH(models::vgg16({.width = 0}), "width: 0 must be in (0, 16]");
  CHECK_THROWS_AS(models::vgg16({.width = std::nan("")}), Error);
  CHECK_THROWS_AS(models::vgg16({.classes = 0}), Error);
}

TEST_CASE("the classic family has the known parameter counts and torchvision's names") {
  // kuangliu's VGG16 (one Linear), chenyaofo's (hidden 512), torchvision's head (hidden 4096) on a 1x1 map.
  CHECK(models::vgg({.hidden = 0}).parameter_count() == 14'728'266);
  CHECK(models::vgg({.hidden = 512}).parameter_count() == 15'253'578);
  CHECK(models::vgg().parameter_count() == 33'646'666);
  // torchvision's ImageNet nets, by their documented totals.
  CHECK(models::vgg({.depth = 11, .batch_norm = false, .classes = 1000, .image = 224}).parameter_count() ==
        132'863'336);

  const nn::Sequential vgg16_bn = models::vgg({.width = 0.125});
  const StateDict state = vgg16_bn.state_dict();
  for (const int i : {0, 3, 7, 10, 14, 17, 20, 24, 27, 30, 34, 37, 40}) {
    const std::string conv = str("features.", i), norm = str("features.", i + 1);
    for (const char* name : {".weight", ".bias"}) CHECK(has(state, conv + name));
    for (const char* name : {".weight", ".bias", ".running_mean", ".running_var", ".num_batches_tracked"})
      CHECK(has(state, norm + name));
  }
  for (const int i : {0, 3, 6})
    for (const char* name : {".weight", ".bias"}) CHECK(has(state, str("classifier.", i, name)));
  CHECK(state.size() == 13 * 7 + 3 * 2);
  CHECK(state.at("features.1.num_batches_tracked").dtype() == DType::i64);

  const StateDict plain = models::vgg({.batch_norm = false, .width = 0.125}).state_dict();
  for (const int i : {0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28})
    CHECK(has(plain, str("features.", i, ".weight")));
  CHECK(plain.size() == 13 * 2 + 3 * 2);
  CHECK(has(models::vgg({.width = 0.125, .hidden = 0}).state_dict(), "classifier.weight"));
  CHECK(models::vgg({.depth = 13, .width = 0.125}).parameters().size() == 10 * 4 + 6);
  CHECK(models::vgg({.depth = 19, .width = 0.125}).parameters().size() == 16 * 4 + 6);
  CHECK_THROWS_WITH(models::vgg({.depth = 12}), "vgg: depth 12 is unknown; use 11, 13, 16 or 19");
  CHECK_THROWS_WITH(models::vgg({.image = 40}), "vgg: image 40 must be a positive multiple of 32");
}

TEST_CASE("state_dict of a VGG with a 2x2 map goes round, and the loaded copy computes the same") {
  manual_seed(1);
  nn::Sequential a = models::vgg({.depth = 11, .classes = 5, .width = 0.0625, .image = 64, .hidden = 64});
  const Tensor x = Tensor::normal({2, 64, 64, 3}, {.seed = 8});
  a(x);  // moves the running statistics
  const StateDict state = a.state_dict();
  manual_seed(2);
  nn::Sequential b = models::vgg({.depth = 11, .classes = 5, .width = 0.0625, .image = 64, .hidden = 64});
  b.load_state_dict(state);
  a.eval();
  b.eval();
  CHECK(a(x).value().to_vector() == b(x).value().to_vector());
  for (const auto& [name, tensor] : b.state_dict())
    CHECK_MESSAGE(tensor.to_vector() == state.at(name).to_vector(), name);
  // The first Linear: file column (c, h, w) is our column (h, w, c).
  const Tensor file = state.at("classifier.0.weight");
  const Tensor ours = dynamic_cast<nn::Linear&>(dynamic_cast<nn::Sequential&>(a["classifier"])[0]).weight.value();
  const int64_t c = 32, rows = 8, columns = 4 * c;  // 64 * width is 4, the least is 8
  REQUIRE(ours.shape() == Shape{rows, columns});
  for (int64_t o = 0; o < rows; ++o)
    for (int64_t k = 0; k < c; k += 5)
      for (int64_t p = 0; p < 4; ++p) CHECK(file.at(o * columns + k * 4 + p) == ours.at(o * columns + p * c + k));
}

TEST_CASE("mlp") {
  nn::Sequential net = models::mlp({.sizes = {6, 5, 4, 3}});
  CHECK(net.describe() ==
        "Sequential(\n  (0): Linear(6, 5)\n  (1): ReLU()\n  (2): Linear(5, 4)\n  (3): ReLU()\n  (4): Linear(4, 3)\n)");
  CHECK(net(Tensor::normal({2, 6}, {})).shape() == Shape{2, 3});
  CHECK_THROWS_WITH(models::mlp({.sizes = {6}}), "mlp: 1 sizes; needs at least input and output");
}

TEST_CASE("a narrow VGG16 learns 32 images by heart") {
  manual_seed(4);
  nn::Sequential net = models::vgg16({.width = 0.125});
  optim::Sgd sgd(net.parameters(), {.lr = 0.01, .momentum = 0.9});
  const Tensor x = Tensor::normal({32, 32, 32, 3}, {.seed = 6}), y = Tensor::empty({32}, DType::i32);
  for (int i = 0; i < 32; ++i) y.data<int32_t>()[i] = static_cast<int32_t>((i * 7) % 10);
  double first = 0, loss_now = 0;
  int64_t correct = 0;
  for (int step = 0; step < 60 && (correct < 32 || loss_now >= 0.3 * first); ++step) {
    sgd.zero_grad();
    const Var logits = net(x);
    const Var loss = cross_entropy(logits, y);
    loss.backward();
    sgd.step();
    loss_now = loss.item();
    if (step == 0) first = loss_now;
    correct = models::count_correct(logits.value(), y);
  }
  CHECK(first > 1.5);
  CHECK(loss_now < 0.3 * first);
  CHECK(correct >= 31);  // above 95 %
}
