// Weights from files: PyTorch's names, with and without wrappers; half files; what does not fit is listed.
#include <doctest/doctest.h>

#include <cstdlib>

#include "core/context.h"
#include "core/safetensors.h"
#include "models/init.h"
#include "models/vgg.h"
#include "models/weights.h"
#include "tests/data_helpers.h"

using namespace ht;
using namespace ht::models;
using data::TempFolder;

namespace {
nn::Sequential net(uint64_t seed, int64_t hidden) {
  manual_seed(seed);
  return vgg({.width = 0.05, .hidden = hidden, .dropout = 0});
}

StateDict with_prefix(const StateDict& state, const std::string& prefix) {
  StateDict out;
  for (const auto& [name, tensor] : state) out[prefix + name] = tensor;
  return out;
}

// Loads the file into a new network of the same kind and compares all of it.
void check_loads(const StateDict& file, const StateDict& wanted, int64_t hidden) {
  const TempFolder folder;
  const std::string path = folder.path / "x";
  save_safetensors(path, file);
  nn::Sequential to = net(2, hidden);
  load_weights(to, path);
  const StateDict got = to.state_dict();
  REQUIRE(got.size() == wanted.size());
  for (const auto& [name, tensor] : wanted) CHECK_MESSAGE(data::same_bytes(got.at(name), tensor), name);
}
}  // namespace

TEST_CASE("torchvision's and kuangliu's names load, wrapped or not, with the file's layout") {
  for (const int64_t hidden : {0, 32}) {
    const StateDict state = net(1, hidden).state_dict();
    CHECK(state.contains(hidden == 0 ? "classifier.weight" : "classifier.6.weight"));
    for (const char* prefix : {"", "module.", "_orig_mod.module.", "module._orig_mod.", "model."})
      check_loads(with_prefix(state, prefix), state, hidden);
  }
}

TEST_CASE("a head of one Linear under either name") {
  const StateDict state = net(1, 0).state_dict();
  StateDict numbered = state;
  for (const char* part : {"weight", "bias"}) {
    numbered[str("classifier.1.", part)] = state.at(str("classifier.", part));
    numbered.erase(str("classifier.", part));
  }
  check_loads(with_prefix(numbered, "module."), state, 0);
}

TEST_CASE(
    "half files are converted, old ones without num_batches_tracked load, a checkpoint's other parts do not matter") {
  StateDict state = net(1, 0).state_dict(), half = state, old = state, checkpoint = state;
  for (auto& [name, tensor] : half) {
    if (tensor.dtype() != DType::f32) continue;
    tensor = tensor.to(DType::f16);
    state[name] = tensor.to(DType::f32);
  }
  check_loads(half, state, 0);
  state = old;
  std::erase_if(old, [](const auto& item) { return item.first.ends_with("num_batches_tracked"); });
  CHECK(old.size() < state.size());
  check_loads(old, state, 0);
  checkpoint["optimizer.applied_steps"] = Tensor::zeros({}, DType::i64);
  checkpoint["ema.features.0.bias"] = Tensor::zeros({8});
  checkpoint["amp.loss_scaler.0.scale"] = Tensor::full({}, 2);
  check_loads(checkpoint, state, 0);
}

TEST_CASE("another network: the lists, the file, and nothing loaded") {
  const TempFolder folder;
  const std::string path = folder.path / "x";
  StateDict state = with_prefix(net(1, 0).state_dict(), "module.");
  state["module.extra"] = Tensor::zeros({1});
  state.erase("module.features.0.bias");
  state["module.features.0.weight"] = Tensor::zeros({8, 3, 5, 5});
  save_safetensors(path, state);
  nn::Sequential to = net(2, 0);
  const StateDict before = to.state_dict();
  const std::string error = error_of([&] { load_weights(to, path); });
  for (const std::string& part :
       {str("weights: '", path), std::string("1 missing [features.0.bias]"), std::string("1 unexpected [extra]"),
        std::string("1 mismatched [features.0.weight (file [8,3,5,5] f32 cpu, model [8,3,3,3])]")})
    CHECK_MESSAGE(contains(error, part), error);
  for (const auto& [name, tensor] : to.state_dict()) CHECK(data::same_bytes(tensor, before.at(name)));
  CHECK(contains(error_of([&] { load_weights(to, folder.path / "absent"); }), "No such file"));
}

TEST_CASE("the averaged weights of a checkpoint") {
  const TempFolder folder;
  const std::string path = folder.path / "x";
  const StateDict state = net(1, 0).state_dict(), average = net(3, 0).state_dict();
  StateDict both = state;
  both.merge(with_prefix(average, "ema."));
  save_safetensors(path, both);
  nn::Sequential to = net(2, 0);
  for (const bool ema : {false, true}) {
    load_weights(to, path, ema);
    for (const auto& [name, tensor] : to.state_dict())
      CHECK(data::same_bytes(tensor, (ema ? average : state).at(name)));
  }
  save_safetensors(path, state);
  CHECK(error_of([&] { load_weights(to, path, true); }) ==
        str("weights: '", path, "' has no averaged weights (ema.*); leave out --ema, or train with it"));
}

TEST_CASE("load_network finds the network that a file is of") {
  const TempFolder folder;
  const std::string path = folder.path / "x";
  const auto check_finds = [&](const nn::Sequential& wanted, const std::string& prefix, const Metadata& metadata,
                               double width, const std::string& name, int64_t image = 32) {
    save_safetensors(path, with_prefix(wanted.state_dict(), prefix), metadata);
    LoadedNetwork got = load_network(path, {.ema = false, .width = width});
    CHECK(got.name == name);
    CHECK(got.model.describe() == wanted.describe());
    CHECK(got.image == image);
    for (const auto& [key, tensor] : got.model.state_dict())
      CHECK(data::same_bytes(tensor, wanted.state_dict().at(key)));
    return got;
  };
  CHECK(check_finds(vgg16({.classes = 7, .width = 0.125}), "", {}, 0, "vgg16 width 0.125").classes == 7);
  const Metadata facts{{"halftone.config", R"({"--width": 0.05})"}, {"halftone.classes", R"(["a", "b", "c"])"}};
  const LoadedNetwork told = check_finds(vgg16({.classes = 3, .width = 0.05}), "", facts, 0, "vgg16 width 0.05");
  CHECK(told.class_names == std::vector<std::string>{"a", "b", "c"});
  check_finds(vgg16({.width = 0.05}), "", {}, 0.05, "vgg16 width 0.05");
  for (const int depth : {11, 13, 16, 19})
    check_finds(vgg({.depth = depth, .batch_norm = false, .width = 0.125, .hidden = 0}), "module.", {}, 0,
                str("vgg", depth, " width 0.125"));
  check_finds(vgg({.classes = 100, .width = 0.125, .hidden = 256}), "net.", {}, 0, "vgg16_bn width 0.125");
  check_finds(vgg({.width = 0.125, .image = 64, .hidden = 256}), "", {}, 0, "vgg16_bn width 0.125", 64);

  const auto error_with = [&](const StateDict& state, const Metadata& metadata) {
    save_safetensors(path, state, metadata);
    return error_of([&] { load_network(path); });
  };
  const StateDict state = net(1, 0).state_dict();
  CHECK(contains(error_with({{"layer.weight", Tensor::zeros({2, 2})}}, {}),
                 "is of no VGG network: it has no features.0.weight; halftone inspect lists what it has"));
  CHECK(contains(error_with({{"features.0.weight", Tensor::zeros({2, 2})}}, {}), "its features are no convolutions"));
  CHECK(contains(error_with({{"features.0.weight", Tensor::zeros({8})}}, {}), "its features are no convolutions"));
  StateDict deeper = state;
  deeper["features.99.weight"] = Tensor::zeros({8, 8, 3, 3});
  CHECK(
      error_with(deeper, {}) ==
      str("weights: '", path, "' is of no network that is known here: vgg: depth 17 is unknown; use 11, 13, 16 or 19"));
  CHECK(contains(error_with(state, {{"halftone.config", "{"}}), str("weights: '", path, "': its metadata is damaged")));
  CHECK(contains(error_with(state, {{"halftone.config", R"({"--width": 1})"}}), "mismatched [features.0.weight"));
}

// tests/golden/check_vgg_weights.py calls this with a folder: torch's weights, input and logits in, ours out.
TEST_CASE("PyTorch's VGG16-BN gives the same logits here") {
  const char* folder = std::getenv("HALFTONE_TORCH_VGG");
  if (!folder) return;
  for (const int64_t hidden : {0, 4096}) {
    const std::string name = str(folder, "/head", hidden);
    manual_seed(5);
    nn::Sequential model = vgg({.hidden = hidden});
    load_weights(model, name + ".safetensors");
    model.eval();
    const SafeTensors io(name + ".io.safetensors");
    const no_grad guard;
    const Tensor logits = model(Var(io.tensor("x_nhwc"))).value(), wanted = io.tensor("logits");
    REQUIRE(logits.shape() == wanted.shape());
    double worst = 0;
    for (int64_t i = 0; i < logits.numel(); ++i) worst = std::max(worst, std::abs(logits.at(i) - wanted.at(i)));
    MESSAGE("head ", hidden, ": largest difference of a logit ", worst);
    CHECK(worst < 1e-4);
    save_safetensors(name + ".ours.safetensors", model.state_dict(), {{"format", "pt"}});
    save_safetensors(name + ".ours-io.safetensors", {{"logits", logits}});
  }
}
