// Casts by list: the policy, the hook, half copies, scopes.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "amp/autocast.h"
#include "autograd/tape.h"
#include "models/layers.h"
#include "models/sequential.h"
#include "ops/ops.h"
#include "tests/error_of.h"

using namespace ht;
using namespace ht::amp;

namespace {
Var leaf(const Shape& shape, DType dtype = DType::f32, bool grad = true) {
  return Var(Tensor::uniform(shape, {7, 1}, -1, 1, dtype), grad);
}

// The notes of the casts on the tape of a result.
std::vector<std::string> casts_of(const Var& y) {
  std::vector<std::string> notes;
  for (const Tape::Node& node : y.state()->tape->nodes())
    if (node.op && node.op->name() == "cast") notes.push_back(node.op->note());
  return notes;
}

using Notes = std::vector<std::string>;
}  // namespace

TEST_CASE("policy: lists come from the registry, the user changes them by name") {
  Policy policy;
  CHECK(policy.rule(find_op("linear")).tag == AmpTag::allow);
  const auto denied = policy.names(AmpTag::deny);
  for (const char* op :
       {"softmax", "log_softmax", "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss",
        "binary_cross_entropy_with_logits", "exp", "log", "pow", "rsqrt", "reciprocal", "sum", "mean", "norm", "var"})
    CHECK_MESSAGE(std::find(denied.begin(), denied.end(), op) != denied.end(), op);
  for (const char* op : {"add", "sub", "mul", "div", "cat"}) CHECK(policy.rule(find_op(op)).tag == AmpTag::promote);
  for (const char* op :
       {"batch_norm", "relu", "max_pool2d", "avg_pool2d", "dropout", "flatten", "sigmoid", "tanh", "gelu"})
    CHECK(policy.rule(find_op(op)).tag == AmpTag::leave);
  CHECK(policy.names(AmpTag::forbid) == std::vector<std::string>{"binary_cross_entropy"});

  policy.set("softmax", AmpTag::allow, "small logits");
  CHECK(policy.rule(find_op("softmax")).tag == AmpTag::allow);
  CHECK(policy.rule(find_op("softmax")).reason == "small logits");
  CHECK(policy.overrides("softmax"));
  CHECK(!policy.overrides("relu"));
  CHECK(error_of([&] { policy.set("sofmax", AmpTag::allow); }) ==
        "amp policy: there is no op 'sofmax'; `halftone ops` lists them, register_op adds your own. Did you mean "
        "softmax?");
  CHECK(contains(error_of([&] { policy.set("cast", AmpTag::allow); }), "'cast' is what casts are made of"));
}

TEST_CASE("policy file: tags and reasons; a bad file changes nothing") {
  const auto path = std::filesystem::temp_directory_path() / str("halftone_policy_", getpid(), ".json");
  const auto with = [&](const char* text) {
    std::ofstream(path) << text;
    Policy policy;
    const std::string error = error_of([&] { policy.load(path.string()); });
    return std::pair(policy, error);
  };
  const auto [good, none] = with(R"({"softmax": "allow", "add": {"tag": "deny", "reason": "sums drift"}})");
  CHECK(none == "no error");
  CHECK(good.rule(find_op("softmax")).tag == AmpTag::allow);
  CHECK(good.rule(find_op("add")).reason == "sums drift");
  for (const auto& [text, part] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"({"add": "deny", "linaer": "deny"})", "Did you mean linear"},
           {R"({"add": "deny", "mul": "never"})", "the tag 'never' is unknown; use allow, deny"},
           {R"({"add": "deny", "mul": 3})", "the entry of 'mul'"},
           {R"(["add"])", "one object"},
           {R"({"add": )", "parse error"}}) {
    const auto [bad, error] = with(text);
    CHECK_MESSAGE(contains(error, part), error);
    CHECK(contains(error, path.string()));
    CHECK(bad.empty());
  }
  std::filesystem::remove(path);
  CHECK(contains(error_of([&] { Policy().load(path.string()); }), "cannot read"));
}

TEST_CASE("autocast: each tag does its casts (worked example 20)") {
  Autocast autocast({}, DType::f16);
  autocast.install();
  const Var x = leaf({4, 3}), w = leaf({2, 3}), h = leaf({4, 3}, DType::f16);
  SUBCASE("allow: half in and out") {
    CHECK(linear(x, w).dtype() == DType::f16);
    CHECK(matmul(x, leaf({3, 2})).dtype() == DType::f16);
  }
  SUBCASE("deny: FP32 in and out") {
    CHECK(softmax(h).dtype() == DType::f32);
    CHECK(sum(h).dtype() == DType::f32);
  }
  SUBCASE("promote: the widest input") {
    CHECK(add(h, x).dtype() == DType::f32);
    CHECK(add(h, h).dtype() == DType::f16);
    CHECK(add(h, leaf({4, 3}, DType::bf16)).dtype() == DType::f32);
    CHECK(add(h, leaf({4, 3}, DType::f64)).dtype() == DType::f64);
    CHECK(cat({h, x, h}).dtype() == DType::f32);
  }
  SUBCASE("leave: as it comes") {
    CHECK(relu(h).dtype() == DType::f16);
    CHECK(relu(x).dtype() == DType::f32);
  }
  SUBCASE("forbid: an error in half that names the way out, nothing in FP32") {
    const Var p = sigmoid(h), t = leaf({4, 3}, DType::f16, false);
    const std::string error = error_of([&] { binary_cross_entropy(p, t); });
    CHECK_MESSAGE(contains(error, "binary_cross_entropy: forbidden in half precision"), error);
    CHECK(contains(error, "binary_cross_entropy_with_logits"));
    CHECK(binary_cross_entropy(sigmoid(x), Var(Tensor::full({4, 3}, 1))).dtype() == DType::f32);
  }
  SUBCASE("integers and FP64 stay as they are") {
    const Var labels = Tensor::zeros({4}, DType::i64);
    CHECK(cross_entropy(h, labels).dtype() == DType::f32);
    CHECK(linear(leaf({4, 3}, DType::f64), leaf({2, 3}, DType::f64)).dtype() == DType::f64);
  }
  SUBCASE("batch norm: data in half, gamma and beta in FP32") {
    const Var gamma = leaf({3}), beta = leaf({3});
    CHECK(batch_norm(h, gamma, beta, {}).dtype() == DType::f16);
    CHECK(batch_norm(h, Var(gamma.value().to(DType::f16), true), beta, {}).dtype() == DType::f16);
  }
  SUBCASE("grad() has its leaf's type, in FP32 and half") {
    sum(linear(relu(linear(x, w)), leaf({2, 2}))).backward();
    CHECK(x.grad().dtype() == DType::f32);
    CHECK(w.grad().dtype() == DType::f32);
    CHECK(w.grad_slot().dtype() == DType::f16);  // half in the slot: one contribution
    sum(relu(h)).backward();
    CHECK(h.grad().dtype() == DType::f16);
  }
}

TEST_CASE("autocast: a fused op comes apart where the policy overrides one of its parts") {
  nn::Sequential net;
  net.add<nn::Conv2d>(2, 4, 3);
  net.add<nn::BatchNorm2d>(4);
  net.add<nn::ReLU>();
  const Var x = leaf({2, 5, 5, 2});
  const auto ops_of = [&](const Policy& policy) {
    Autocast autocast(policy, DType::f16);
    autocast.install();
    const Var y = net(x);
    std::vector<std::string> names{std::string(name_of(y.dtype()))};
    for (const Tape::Node& node : y.state()->tape->nodes())
      if (node.op && node.op->name() != "cast") names.emplace_back(node.op->name());
    return names;
  };
  Policy policy;
  CHECK(ops_of(policy) == Notes{"f16", "conv_bn_relu"});
  policy.set("relu", AmpTag::deny);
  CHECK(ops_of(policy) == Notes{"f32", "conv2d", "batch_norm", "relu"});
}

TEST_CASE("autocast: bf16, user overrides, own ops") {
  Policy policy;
  policy.set("relu", AmpTag::deny);
  Autocast autocast(policy, DType::bf16);
  autocast.install();
  const Var y = linear(leaf({4, 3}), leaf({2, 3}));
  CHECK(y.dtype() == DType::bf16);
  CHECK(relu(y).dtype() == DType::f32);
}

TEST_CASE("half copies: one cast an update, shown as cached, refreshed after any write") {
  Autocast autocast({}, DType::f16);
  autocast.install();
  const Var x = leaf({4, 3}, DType::f32, false), w = leaf({2, 3});
  const Var first = linear(x, w);
  CHECK(casts_of(first) == Notes{"f32 -> f16"});  // x needs no gradient, so its cast is not recorded
  const Tensor copy = w.half_copy(DType::f16);
  const Var second = linear(x, w);
  CHECK(casts_of(second) == Notes{"f32 -> f16", "f32 -> f16, cached"});
  CHECK(w.half_copy(DType::f16).same_storage(copy));

  w.value().fill_(0.5);  // any other write to the weight
  CHECK(!w.has_half_copy(DType::f16));
  CHECK(linear(x, w).value().to_vector() == linear(x, Var(Tensor::full({2, 3}, 0.5))).value().to_vector());
  CHECK(w.half_copy(DType::f16).same_storage(copy));  // in place: a captured step keeps its pointer
  CHECK(w.half_copy(DType::f16).at(0) == 0.5);
  CHECK(contains(error_of([&] { sum(first).backward(); }), "a saved tensor was written after forward"));

  w.value().bump_version();  // both written, as an optimizer and the replay of its step do
  copy.bump_version();
  CHECK(w.has_half_copy(DType::f16));

  w.set_value(Tensor::full({2, 3}, 2));  // another tensor
  CHECK(w.half_copy(DType::f16).at(0) == 2);
  CHECK(w.half_copy(DType::bf16).dtype() == DType::bf16);
}

TEST_CASE("half weight gradients stay half; a shared weight adds in FP32 (worked example 19)") {
  Autocast autocast({}, DType::f16);
  autocast.install();
  const Var w = Var(Tensor::full({1, 1}, 1), true), x = Tensor::full({1, 1}, 40000);
  const Var y1 = linear(x, w), y2 = linear(x, w);
  sum(y1).backward();
  CHECK(w.grad_slot().dtype() == DType::f16);
  sum(y2).backward();
  CHECK(w.grad_slot().dtype() == DType::f32);
  CHECK(w.grad().item() == 80000);
}

TEST_CASE("a half -> float -> half pair never appears on a tape") {
  Autocast autocast({}, DType::f16);
  autocast.install();
  // Other pairs change values, and stay.
  CHECK(casts_of(cast(cast(leaf({2}), DType::f16), DType::f32)) == Notes{"f32 -> f16", "f16 -> f32"});
  CHECK(casts_of(cast(cast(leaf({2}, DType::f16), DType::f32), DType::bf16)) == Notes{"f16 -> f32", "f32 -> bf16"});

  const Var h = leaf({4, 3}, DType::f16), w = leaf({2, 3}, DType::f16);
  const Var wide = cast(h, DType::f32);
  const Var y = linear(wide, w);  // would narrow `wide` again
  CHECK(casts_of(y) == Notes{"f16 -> f32"});
  CHECK(cast(wide, DType::f16).value().same_storage(h.value()));
  CHECK(y.dtype() == DType::f16);
  sum(y).backward();
  CHECK(h.grad().defined());

  // A non-leaf half whose Var is gone by the time it is wanted.
  Var late;
  {
    const Var inner = relu(h);
    late = cast(inner, DType::f32);
  }
  const Var z = linear(late, w);
  sum(z).backward();
  CHECK(h.grad().defined());
}

TEST_CASE("disable_casts: nests, ends with its scope and with an exception") {
  Autocast autocast({}, DType::f16);
  autocast.install();
  const Var x = leaf({4, 3}), w = leaf({2, 3});
  {
    const disable_casts outer;
    CHECK(linear(x, w).dtype() == DType::f32);
    {
      const disable_casts inner;
      CHECK(linear(x, w).dtype() == DType::f32);
    }
    CHECK(linear(x, w).dtype() == DType::f32);
    CHECK(!casts_enabled());
  }
  CHECK(linear(x, w).dtype() == DType::f16);
  CHECK(contains(error_of([&] {
                   const disable_casts guard;
                   linear(x, leaf({2, 4}));
                 }),
                 "linear"));
  CHECK(casts_enabled());
  CHECK(linear(x, w).dtype() == DType::f16);
}

TEST_CASE("autocasts on one thread: the newest rules, the others come back in any order") {
  const Var x = leaf({4, 3}), w = leaf({2, 3});
  auto a = std::make_unique<Autocast>(Policy{}, DType::f16), b = std::make_unique<Autocast>(Policy{}, DType::bf16);
  a->install();
  b->install();
  CHECK(linear(x, w).dtype() == DType::bf16);
  SUBCASE("last in, first out") {
    b.reset();
    CHECK(linear(x, w).dtype() == DType::f16);
    a.reset();
  }
  SUBCASE("first in, first out") {
    a.reset();
    CHECK(linear(x, w).dtype() == DType::bf16);
    b.reset();
  }
  CHECK(linear(x, w).dtype() == DType::f32);
}

TEST_CASE("trace: every cast of a step with its reason, bytes, cached or in the op") {
  Autocast autocast({}, DType::f16);
  autocast.install();
  nn::Linear layer(3, 2);
  layer.named_parameters();  // gives the parameters their names
  const Var x = leaf({4, 3}, DType::f32, false);
  mse_loss(layer(x), Tensor::zeros({4, 2}));
  autocast.start_trace();
  mse_loss(layer(x), Tensor::zeros({4, 2}));
  const auto trace = autocast.take_trace();
  REQUIRE(trace.size() == 4);  // x, weight, bias, the loss's input
  CHECK(str(trace[0]) ==
        "linear input 0: f32 -> f16, 72 bytes; allow: tensor cores: half in and out, FP32 accumulation");
  CHECK(str(trace[1]) ==
        "linear input 1 (weight): f32 -> f16, cached; allow: tensor cores: half in and out, FP32 accumulation");
  CHECK(str(trace[3]) == "mse_loss input 0: f16 -> f32, in the op; deny: squares leave half's range: 300^2 is inf");
  CHECK(trace[3].in_op);
  CHECK(trace[3].bytes == 0);

  autocast.start_trace();
  sum(layer(x));  // an op that leaves the widening to a cast
  CHECK(str(autocast.take_trace().back()) ==
        str("sum input 0: f16 -> f32, ", 8 * 6, " bytes; deny: ", find_op("sum").reason));
  CHECK(autocast.take_trace().empty());
}

TEST_CASE("masters: a half parameter with its FP32 master saves and loads FP32") {
  nn::Linear layer(3, 2);
  const double exact = 1 + 0x1p-15;  // not a half
  layer.weight.value().fill_(exact);
  layer.weight.set_half_with_master(DType::f16);
  CHECK(layer.weight.dtype() == DType::f16);
  CHECK(layer.weight.value().at(0) == 1);
  CHECK(layer.weight.master().at(0) == exact);
  StateDict state = layer.state_dict();
  CHECK(state.at("weight").dtype() == DType::f32);
  CHECK(state.at("weight").at(0) == exact);
  state.at("weight").fill_(2 + 0x1p-14);
  layer.load_state_dict(state);
  CHECK(layer.weight.value().at(0) == 2);
  CHECK(layer.weight.master().at(0) == 2 + 0x1p-14);
  layer.weight.value().fill_(3);  // a write to the half one is the newer truth
  CHECK(layer.weight.master().at(0) == 3);
  layer.load_state_dict(state);
  layer.to(DType::f32);
  CHECK(layer.weight.value().at(0) == 2 + 0x1p-14);
}
