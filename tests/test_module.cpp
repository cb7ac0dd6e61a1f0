// Modules: names, order, files in PyTorch's layout, loading that changes everything or nothing.
#include <doctest/doctest.h>

#include "autograd/module.h"
#include "ops/ops.h"
#include "tests/error_of.h"

using namespace ht;

namespace {
using Values = std::vector<double>;

Tensor iota(const Shape& shape, DType t = DType::f32) {
  Values v(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<double>(i);
  return Tensor::from(v, shape, t);
}

struct Inner : Module {
  Var weight, mean, count;
  Inner() {
    weight = register_parameter("weight", iota({2, 2, 3, 4}));  // [out, h, w, in]
    mean = register_buffer("running_mean", Tensor::full({4}, 0.5));
    count = register_buffer("num_batches_tracked", Tensor::full({}, 3, DType::i64));
  }
  Var forward(const Var& x) override { return x; }
  std::string describe() const override { return "Inner"; }
};

struct Outer : Module {
  Var scale, head;
  Inner *first, *second;
  Outer() {
    scale = register_parameter("scale", Tensor::full({3}, 2));
    first = &register_module("first", Inner());
    second = &register_module("second", Inner());
    head = register_parameter("head", iota({2, 12}), {2, 3});  // reads a map of 2 x 3 with 2 channels
  }
  Var forward(const Var& x) override { return x; }
  std::string describe() const override { return "Outer"; }
};

std::vector<std::string> names(const std::vector<std::pair<std::string, Var>>& entries) {
  std::vector<std::string> out;
  for (const auto& [name, var] : entries) out.push_back(name);
  return out;
}

// Every value, version aside: what a load may change.
Values all_values(const Module& m) {
  Values out;
  for (const auto& entries : {m.named_parameters(), m.named_buffers()})
    for (const auto& [name, var] : entries) {
      const Values v = var.value().to_vector();
      out.insert(out.end(), v.begin(), v.end());
    }
  return out;
}
}  // namespace

TEST_CASE("module: names in order of registration, depth first") {
  Outer m;
  CHECK(names(m.named_parameters()) == std::vector<std::string>{"scale", "head", "first.weight", "second.weight"});
  CHECK(names(m.named_buffers()) == std::vector<std::string>{"first.running_mean", "first.num_batches_tracked",
                                                             "second.running_mean", "second.num_batches_tracked"});
  CHECK(m.parameters().size() == 4);
  CHECK(m.parameter_count() == 3 + 24 + 48 + 48);
  CHECK(m.children().size() == 2);
  CHECK(m.first->weight.state()->name == "first.weight");
  for (const Var& p : m.parameters()) CHECK(p.requires_grad());
  for (const auto& [name, b] : m.named_buffers()) CHECK_FALSE(b.requires_grad());
}

TEST_CASE("module: the handles in the module, the list and the children are the same parameters") {
  Outer m;
  m.parameters()[2].value().fill_(7);
  CHECK(m.first->weight.value().at(5) == 7);
  CHECK(m.second->weight.value().at(5) == 5);
  relu(m.scale).backward(Tensor::full({3}, 1));
  CHECK(m.parameters()[0].grad().to_vector() == Values{1, 1, 1});
  m.zero_grad();
  CHECK_FALSE(m.scale.grad().defined());
  const Outer moved = std::move(m);
  CHECK(moved.parameter_count() == 123);
  CHECK(moved.first->weight.value().at(5) == 7);  // children keep their place
}

TEST_CASE("module: train and eval reach the children") {
  Outer m;
  CHECK(m.training());
  m.eval();
  CHECK_FALSE(m.second->training());
  m.train();
  CHECK(m.first->training());
}

TEST_CASE("module: state_dict is PyTorch's layout and a copy") {
  Outer m;
  const StateDict s = m.state_dict();
  CHECK(s.size() == 8);
  const Tensor w = s.at("first.weight");  // [out, in, h, w]
  CHECK(w.shape() == Shape{2, 4, 2, 3});
  for (int64_t o = 0; o < 2; ++o)
    for (int64_t c = 0; c < 4; ++c)
      for (int64_t y = 0; y < 2; ++y)
        for (int64_t x = 0; x < 3; ++x)
          CHECK(w.at(((o * 4 + c) * 2 + y) * 3 + x) == m.first->weight.value().at(((o * 2 + y) * 3 + x) * 4 + c));
  // The head's columns go from (h, w, c) to (c, h, w): its first row is 0 2 4 6 8 10 (channel 0), then 1 3 5 ...
  const Tensor head = s.at("head");
  CHECK(head.shape() == Shape{2, 12});
  CHECK(head.rows(0, 1).to_vector() == Values{0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11});
  CHECK(s.at("first.num_batches_tracked").dtype() == DType::i64);
  s.at("scale").fill_(100);
  w.fill_(-1);
  CHECK(m.scale.value().at(0) == 2);
  CHECK(m.first->weight.value().at(1) == 1);
}

TEST_CASE("module: state_dict goes round, through other types too") {
  Outer a, b;
  for (const auto& [name, var] : b.named_parameters()) var.value().fill_(-5);
  for (const auto& [name, var] : b.named_buffers()) var.value().fill_(-5);
  const uint64_t version = b.scale.value().version();
  b.load_state_dict(a.state_dict());
  CHECK(all_values(b) == all_values(a));
  CHECK(b.scale.value().version() > version);
  CHECK(b.second->count.value().dtype() == DType::i64);

  a.to(DType::f16);
  CHECK(a.scale.dtype() == DType::f16);
  CHECK(a.first->count.dtype() == DType::i64);  // integers stay
  const StateDict half = a.state_dict();
  CHECK(half.at("scale").dtype() == DType::f32);  // files are FP32
  b.load_state_dict(half);
  CHECK(all_values(b) == all_values(a));
  a.load_state_dict(b.state_dict());
  CHECK(a.scale.dtype() == DType::f16);
  CHECK(contains(error_of([&] { a.to(DType::i32); }), "is not a floating dtype"));
}

TEST_CASE("module: a change of type drops the gradients; of device keeps the handles") {
  Outer m;
  const Var scale = m.scale;
  relu(scale).backward(Tensor::full({3}, 1));
  m.to(Device::cpu());
  CHECK(scale.grad().defined());
  m.to(DType::f32);
  CHECK(scale.grad().defined());  // nothing changed
  m.to(DType::bf16);
  CHECK(scale.dtype() == DType::bf16);
  CHECK_FALSE(scale.grad().defined());
}

TEST_CASE("module: a strict load lists what does not fit and changes nothing") {
  Outer m;
  const Values before = all_values(m);
  StateDict s = m.state_dict();
  for (auto& [name, t] : s) t = t.clone(), t.fill_(9);
  s.erase("head");
  s["extra.weight"] = Tensor::zeros({1});
  s["first.weight"] = Tensor::zeros({2, 2, 3, 4});  // our layout, not the file's
  const std::string text = error_of([&] { m.load_state_dict(s); });
  CHECK(
      text ==
      "load_state_dict: 1 missing [head], 1 unexpected [extra.weight], 1 mismatched [first.weight (file [2,2,3,4] f32 "
      "cpu, model [2,4,2,3])]; nothing was loaded");
  CHECK(all_values(m) == before);
  CHECK(contains(error_of([&] { m.load_state_dict(s, false); }), "1 mismatched"));  // a shape is always an error
  CHECK(all_values(m) == before);
  s["first.weight"] = Tensor();
  CHECK(contains(error_of([&] { m.load_state_dict(s, false); }), "file undefined"));
  CHECK(all_values(m) == before);

  s.erase("first.weight");
  CHECK(contains(error_of([&] { m.load_state_dict(s); }), "2 missing [head, first.weight]"));
  CHECK(all_values(m) == before);
  m.load_state_dict(s, false);
  CHECK(m.scale.value().to_vector() == Values{9, 9, 9});
  CHECK(m.second->weight.value().at(3) == 9);
  CHECK(m.first->weight.value().at(3) == 3);  // was not in the file
  CHECK(m.head.value().at(3) == 3);
  m.load_state_dict({}, false);

  StateDict many;
  for (int i = 0; i < 20; ++i) many[str("key", i)] = Tensor::zeros({1});
  CHECK(contains(error_of([&] { m.load_state_dict(many); }), "and 12 more"));
}
