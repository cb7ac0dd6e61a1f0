// Batches of every size on CUDA: odd ones against the CPU, op by op and through a small network, and empty ones.
#include <doctest/doctest.h>

#include <cmath>
#include <map>

#include "models/layers.h"
#include "models/sequential.h"
#include "ops/registry.h"
#include "ops/samples.h"
#include "tests/cuda_compare.h"
#include "tests/error_of.h"

using namespace ht;

namespace {
constexpr int64_t kOddBatches[] = {1, 7, 127, 2049};

// The ops whose kernels or plans depend on the batch, on shapes that fill no block evenly.
std::vector<std::pair<const OpInfo*, Sample>> batch_samples(int64_t n, DType dtype) {
  std::vector<std::pair<const OpInfo*, Sample>> list;
  const auto add = [&](const OpInfo& op, const std::string& label, const std::vector<Shape>& shapes, auto function) {
    Sample s{label, {}, function};
    for (const Shape& shape : shapes) s.inputs.push_back(sample_signed(shape, s.inputs.size(), 0.1, 1));
    list.emplace_back(&op, std::move(s));
  };
  using In = std::span<const Var>;
  add(conv2d_info, "3 channels", {{n, 8, 8, 3}, {16, 3, 3, 3}},
      [](In v) { return conv2d(v[0], v[1], {.padding = 1}); });
  add(conv2d_info, "16 channels", {{n, 6, 5, 16}, {24, 3, 3, 16}, {24}},
      [](In v) { return conv2d(v[0], v[1], v[2], {.padding = 1}); });
  add(conv2d_info, "stride 2, 7 channels", {{n, 9, 7, 7}, {5, 3, 3, 7}},
      [](In v) { return conv2d(v[0], v[1], {.stride = 2}); });
  add(conv2d_info, "1x1", {{n, 3, 3, 16}, {10, 1, 1, 16}}, [](In v) { return conv2d(v[0], v[1]); });
  add(linear_info, "odd", {{n, 33}, {17, 33}, {17}}, [](In v) { return linear(v[0], v[1], v[2]); });
  add(linear_info, "10 classes", {{n, 64}, {10, 64}}, [](In v) { return linear(v[0], v[1]); });
  add(bn_relu_info, "12 channels", {{n, 3, 5, 12}, {12}, {12}}, [](In v) { return bn_relu(v[0], v[1], v[2], {}); });
  if (dtype == DType::f32) {  // rounding to half moves a maximum or a zero, and a whole gradient with it
    add(bn_relu_pool_info, "12 channels", {{n, 6, 5, 12}, {12}, {12}},
        [](In v) { return bn_relu_pool(v[0], v[1], v[2], {}); });
    add(conv_bn_relu_info, "3 to 16 channels", {{n, 6, 5, 3}, {16, 3, 3, 3}, {16}, {16}},
        [](In v) { return conv_bn_relu(v[0], v[1], {}, v[2], v[3], {}, {.padding = 1}); });
    add(conv_bn_relu_pool_info, "16 to 12 channels", {{n, 6, 5, 16}, {12, 3, 3, 16}, {12}, {12}},
        [](In v) { return conv_bn_relu_pool(v[0], v[1], {}, v[2], v[3], {}, {.padding = 1}); });
  }
  for (const int64_t c : {12, 64})
    add(batch_norm_info, str(c, " channels"), {{n, 3, 5, c}, {c}, {c}},
        [](In v) { return batch_norm(v[0], v[1], v[2], {}); });
  add(max_pool2d_info, "2x2", {{n, 6, 5, 8}}, [](In v) { return max_pool2d(v[0]); });
  add(max_pool2d_info, "3x3", {{n, 6, 5, 8}},
      [](In v) { return max_pool2d(v[0], {.kernel = 3, .stride = 2, .padding = 1}); });
  add(avg_pool2d_info, "2x2", {{n, 6, 5, 8}}, [](In v) { return avg_pool2d(v[0]); });
  add(global_avg_pool2d_info, "odd", {{n, 3, 5, 40}}, [](In v) { return global_avg_pool2d(v[0]); });
  const Tensor labels = sample_labels(n, 10, 9);
  add(cross_entropy_info, "10 classes", {{n, 10}},
      [labels](In v) { return cross_entropy(v[0], labels.to(v[0].device())); });
  return list;
}

void compare_batches(DType dtype, double bound) {
  HT_NEEDS_CUDA();
  for (const int64_t n : kOddBatches)
    for (const auto& [op, sample] : batch_samples(n, dtype)) {
      INFO(op->name << " (" << sample.label << ") batch " << n << ' ' << name_of(dtype));
      // Behind a ReLU a value near zero may round to the other side, and its gradient with it.
      compare_with_cpu(*op, sample, dtype, op->parts.empty() ? bound : std::max(bound, 1e-3));
    }
}
}  // namespace

TEST_CASE("cuda: odd batches, op by op, f32") { compare_batches(DType::f32, 1e-5); }
TEST_CASE("cuda: odd batches, op by op, f16") { compare_batches(DType::f16, 2e-3); }
TEST_CASE("cuda: odd batches, op by op, bf16") { compare_batches(DType::bf16, 2e-2); }

TEST_CASE("cuda: odd batches through a small network") {
  HT_NEEDS_CUDA();
  const auto make = [] {
    manual_seed(3);
    nn::Sequential model;
    int64_t in = 3;
    for (const int64_t out : {8, 16, 24}) {
      model.add<nn::Conv2d>(in, out, 3, nn::ConvOptions{.padding = 1, .bias = false});
      model.add<nn::BatchNorm2d>(out);
      model.add<nn::ReLU>();
      model.add<nn::MaxPool2d>();
      in = out;
    }
    model.add<nn::Flatten>();
    model.add<nn::Linear>(2 * 2 * in, 10);
    return model;
  };
  for (const int64_t n : kOddBatches) {
    INFO("batch " << n);
    nn::Sequential cpu = make(), cuda = make();
    cuda.to(Device::cuda());
    const Tensor x = Tensor::normal({n, 16, 16, 3}, {5, 1}), y = sample_labels(n, 10, 2);
    const Var want = cross_entropy(cpu(x), y);
    const Var got = cross_entropy(cuda(x.to(Device::cuda())), y.to(Device::cuda()));
    want.backward();
    got.backward();
    CHECK(std::abs(got.item() - want.item()) <= 1e-5 * want.item());
    const auto theirs = cuda.named_parameters();
    size_t k = 0;
    for (const auto& [name, p] : cpu.named_parameters()) {
      // A ReLU's input or the two best of a pool may round to the other side: one gradient among many goes elsewhere.
      const double error = distance(theirs[k++].second.grad().to(Device::cpu()), p.grad(), 0);
      CHECK_MESSAGE(error <= 3e-3, name, ": relative L2 ", error);
    }
    // A mean near zero is as exact as the spread that it is the mean of.
    for (const auto& [name, buffer] : cpu.state_dict())
      if (name.ends_with("running_mean") || name.ends_with("running_var"))
        CHECK_MESSAGE(distance(cuda.state_dict().at(name), buffer, 0.05 * std::sqrt(buffer.numel())) <= 1e-5, name);
  }
}

namespace {
// Each op on an input without elements, where it has one.
std::map<std::string, Sample> empty_samples() {
  std::map<std::string, Sample> list;
  using In = std::span<const Var>;
  const auto add = [&](const std::string& op, const std::vector<Shape>& shapes, std::function<Var(In)> function) {
    Sample s{"empty", {}, std::move(function)};
    for (const Shape& shape : shapes) s.inputs.push_back(sample_signed(shape, s.inputs.size(), 0.1, 1));
    list[op] = std::move(s);
  };
  const std::pair<const char*, Var (*)(const Var&)> pointwise[] = {
      {"abs", abs},   {"exp", exp},     {"gelu", gelu},       {"log", log},   {"neg", neg},  {"reciprocal", reciprocal},
      {"relu", relu}, {"rsqrt", rsqrt}, {"sigmoid", sigmoid}, {"sqrt", sqrt}, {"tanh", tanh}};
  for (const auto& [name, f] : pointwise) add(name, {{0, 3}}, [f = f](In v) { return f(v[0]); });
  add("pow", {{0, 3}}, [](In v) { return pow(v[0], 2); });
  add("scale", {{0, 3}}, [](In v) { return scale(v[0], 2); });
  add("clamp", {{0, 3}}, [](In v) { return clamp(v[0], -1, 1); });
  add("cast", {{0, 3}}, [](In v) { return cast(v[0], DType::f16); });
  add("dropout", {{0, 3}}, [](In v) { return dropout(v[0], 0.5); });

  const std::pair<const char*, Var (*)(const Var&, const Var&)> binary[] = {
      {"add", ht::add}, {"sub", ht::sub}, {"mul", ht::mul}, {"div", ht::div}};
  for (const auto& [name, f] : binary) add(name, {{0, 3}, {3}}, [f = f](In v) { return f(v[0], v[1]); });

  const std::pair<const char*, Var (*)(const Var&, const ReduceOptions&)> reductions[] = {
      {"sum", sum}, {"mean", mean}, {"norm", norm}};
  for (const auto& [name, f] : reductions) add(name, {{0, 3}}, [f = f](In v) { return f(v[0], {.axes = {0}}); });
  add("var", {{0, 3}}, [](In v) { return var(v[0], {.axes = {0}}); });

  add("reshape", {{0, 4}}, [](In v) { return reshape(v[0], {0, 2, 2}); });
  add("flatten", {{0, 2, 3}}, [](In v) { return flatten(v[0]); });
  add("transpose", {{0, 3}}, [](In v) { return transpose(v[0], 0, 1); });
  add("slice", {{0, 3}}, [](In v) { return slice(v[0], 1, 1, 3); });
  add("cat", {{0, 3}, {0, 3}}, [](In v) { return cat({v[0], v[1]}, 1); });
  add("matmul", {{0, 3}, {3, 5}}, [](In v) { return matmul(v[0], v[1]); });
  add("linear", {{0, 3}, {5, 3}, {5}}, [](In v) { return linear(v[0], v[1], v[2]); });
  add("conv2d", {{0, 5, 5, 3}, {4, 3, 3, 3}, {4}}, [](In v) { return conv2d(v[0], v[1], v[2]); });
  add("max_pool2d", {{0, 4, 4, 3}}, [](In v) { return max_pool2d(v[0]); });
  add("avg_pool2d", {{0, 4, 4, 3}}, [](In v) { return avg_pool2d(v[0]); });
  add("global_avg_pool2d", {{0, 4, 4, 3}}, [](In v) { return global_avg_pool2d(v[0]); });
  add("batch_norm", {{0, 4, 4, 3}, {3}, {3}}, [](In v) { return batch_norm(v[0], v[1], v[2], {}); });
  add("bn_relu", {{0, 4, 4, 3}, {3}, {3}}, [](In v) { return bn_relu(v[0], v[1], v[2], {}); });
  add("bn_relu_pool", {{0, 4, 4, 3}, {3}, {3}}, [](In v) { return bn_relu_pool(v[0], v[1], v[2], {}); });
  add("conv_bn_relu", {{0, 4, 4, 3}, {4, 3, 3, 3}, {4}, {4}},
      [](In v) { return conv_bn_relu(v[0], v[1], {}, v[2], v[3], {}); });
  add("conv_bn_relu_pool", {{0, 4, 4, 3}, {4, 3, 3, 3}, {4}, {4}},
      [](In v) { return conv_bn_relu_pool(v[0], v[1], {}, v[2], v[3], {}); });
  add("softmax", {{0, 3}}, [](In v) { return softmax(v[0]); });
  add("log_softmax", {{0, 3}}, [](In v) { return log_softmax(v[0]); });
  const auto labels = [](const Var& x) { return Var(Tensor::zeros({0}, DType::i64, x.device())); };
  add("cross_entropy", {{0, 3}}, [labels](In v) { return cross_entropy(v[0], labels(v[0])); });
  add("nll_loss", {{0, 3}}, [labels](In v) { return nll_loss(v[0], labels(v[0])); });
  add("mse_loss", {{0, 3}, {0, 3}}, [](In v) { return mse_loss(v[0], v[1]); });
  add("l1_loss", {{0, 3}, {0, 3}}, [](In v) { return l1_loss(v[0], v[1]); });
  add("smooth_l1_loss", {{0, 3}, {0, 3}}, [](In v) { return smooth_l1_loss(v[0], v[1]); });
  add("binary_cross_entropy", {{0, 3}, {0, 3}}, [](In v) { return binary_cross_entropy(v[0], v[1]); });
  add("binary_cross_entropy_with_logits", {{0, 3}, {0, 3}},
      [](In v) { return binary_cross_entropy_with_logits(v[0], v[1]); });
  return list;
}

// What a sample gives on a device, or why not, in words that are equal for equal results.
std::string told(const OpInfo& op, const Sample& s, Device device) {
  std::string text;
  try {
    const Outcome o = run_sample(op, s, DType::f32, DType::f32, device);
    const auto tell = [&](const Tensor& t) {
      text += t.defined() ? str(t.shape(), ' ', t.dtype()) : "none";
      if (t.defined())
        for (const double v : t.to_vector()) text += std::isnan(v) ? " nan" : str(' ', v + 0.0);  // no -0
      text += "; ";
    };
    tell(o.y);
    for (const Tensor& g : o.grads) tell(g);
  } catch (const Error& e) {
    text = e.what();
    for (size_t at; (at = text.find("cuda:0")) != std::string::npos;) text.replace(at, 6, "cpu");
  }
  return text;
}
}  // namespace

TEST_CASE("cuda: an empty batch does what it does on the CPU") {
  HT_NEEDS_CUDA();
  const auto samples = empty_samples();
  for (const OpInfo* op : all_ops()) {
    const auto it = samples.find(std::string(op->name));
    CHECK_MESSAGE(it != samples.end(), op->name, " is not in the table above");
    if (it == samples.end()) continue;
    INFO(op->name);
    const std::string cpu = told(*op, it->second, Device::cpu());
    CHECK(told(*op, it->second, Device::cuda()) == cpu);
    MESSAGE(op->name, ": ", cpu);
  }
}
