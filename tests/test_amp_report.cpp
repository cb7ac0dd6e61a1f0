// examine: casts, the first op that overflows, the underflow gauge, the error budget; the files.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "amp/report.h"
#include "models/layers.h"
#include "models/sequential.h"
#include "ops/ops.h"
#include "tests/amp_rig.h"
#include "tests/error_of.h"
#include "tests/on_devices.h"

using namespace ht;

namespace {
struct Net {
  Net(Device d, amp::Level level) : device(d) {
    manual_seed(8);
    net.add<nn::Conv2d>(3, 16, 3, nn::ConvOptions{.padding = 1});
    net.add<nn::BatchNorm2d>(16);
    net.add<nn::ReLU>();
    net.add<nn::AvgPool2d>();  // a max pool sends gradients elsewhere when rounding makes a tie
    net.add<nn::Dropout>(0.5);
    net.add<nn::Flatten>();
    net.add<nn::Linear>(16 * 16, 10, nn::LinearOptions{.spatial = {4, 4}});
    net.to(device);
    sgd = std::make_unique<optim::Sgd>(net.parameters(), optim::SgdOptions{.lr = 0.01, .momentum = 0.9});
    amp = std::make_unique<amp::Amp>(amp::initialize(net, *sgd, {.level = level}));
  }
  Var loss() {
    const Tensor x = Tensor::normal({8, 8, 8, 3}, {2, 2}).to(device);
    return cross_entropy(net(x), Tensor::from({0, 1, 2, 3, 4, 5, 6, 7}, {8}, DType::i64).to(device));
  }
  void step() {
    sgd->zero_grad();
    amp->backward(loss());
    sgd->step();
  }
  amp::StepReport examine(double scale = 0) {
    return amp::examine(
        *amp, [&] { return loss(); }, scale);
  }
  Device device;
  nn::Sequential net;
  std::unique_ptr<optim::Sgd> sgd;
  std::unique_ptr<amp::Amp> amp;
};

// Every op of a step stays near its FP32 self: half has 11 bits, bf16 8.
void error_budget(Device device) {
  for (const amp::Level level : {amp::O1, amp::O2, amp::fp16, amp::bf16}) {
    INFO(name_of(level));
    Net n(device, level);
    n.step();
    const amp::StepReport r = n.examine();
    CHECK(r.first_non_finite == "");
    REQUIRE(r.errors.size() == 6);
    CHECK(r.errors[0].op == "conv_bn_relu");
    CHECK(r.errors[0].label == "0.weight, 1.weight, 1.bias, 0.bias");
    const double output = level == amp::bf16 ? 2e-2 : 2e-3;
    for (const amp::OpError& e : r.errors) {
      CHECK_MESSAGE(e.output < output, e.op, " ", e.label, ": ", e.output);
      CHECK_MESSAGE(e.gradient < 5 * output, e.op, " ", e.label, ": ", e.gradient);
    }
    CHECK(r.errors.back().op == "cross_entropy");
    CHECK(r.errors.back().gradient == 0);
  }
}

void leaves_no_trace(Device device) {
  set_deterministic(true);
  for (const amp::Level level : {amp::O1, amp::O2}) {
    const auto train = [&](bool examined) {
      Net n(device, level);
      for (int i = 0; i < 3; ++i) {
        n.step();
        if (examined) n.examine();
      }
      std::vector<std::vector<double>> all;
      for (const auto& [name, t] : n.net.state_dict()) all.push_back(bits_of(t));
      for (const auto& [name, t] : n.sgd->state_dict()) all.push_back(bits_of(t));
      return all;
    };
    CHECK(train(false) == train(true));
  }
  set_deterministic(false);
}

void casts_of_a_step(Device device) {
  Net n(device, amp::O1);
  n.step();
  const auto casts = n.examine().casts;
  REQUIRE(casts.size() == 6);  // x, weight, bias; weight and bias of the linear layer; logits
  CHECK(casts[0].op == "conv_bn_relu");
  CHECK(!casts[0].cached);
  CHECK(casts[1].name == "0.weight");
  CHECK(casts[1].cached);
  CHECK(casts[4].name == "6.bias");
  CHECK(casts[5].to == DType::f32);
  CHECK(casts[5].in_op);
  CHECK(casts[5].rule.tag == AmpTag::deny);
}

void provenance(Device device) {
  Net n(device, amp::O1);
  n.step();
  CHECK(n.examine(65536).first_non_finite == "");
  const std::string backward = n.examine(0x1p60).first_non_finite;  // beyond half in the logits' gradient
  CHECK_MESSAGE(contains(backward, "first non-finite in the backward of cross_entropy"), backward);
  CHECK(contains(backward, "forward finite"));
  n.net.parameters()[4].value().fill_(1e6);  // the linear layer's weight
  const std::string forward = n.examine().first_non_finite;
  CHECK_MESSAGE(contains(forward, "first non-finite in the output of cast (6.weight)"), forward);
  CHECK(contains(forward, "the model diverges"));
}

// Gradients 1, 2^-20 and 2^-40 at scales that lift them over half's floor or do not.
void gauge(Device device) {
  AmpRig rig(device, {1, 1, 1, 1}, {.lr = 0}, {.loss_scale = 1024});
  const Var g = Tensor::from({1, 0x1p-30, 0x1p-40, 0}, {4}).to(device);
  const auto loss = [&] { return sum(mul(rig.model.w, g)); };
  const amp::StepReport r = amp::examine(rig.amp, loss);
  REQUIRE(r.gradients.size() == 1);
  const amp::GradientGauge& w = r.gradients[0];
  CHECK(w.name == "w");
  CHECK(w.elements == 4);
  CHECK(w.zeros == 1);
  CHECK(w.flushed == 1);
  CHECK(w.subnormal == 1);
  CHECK(w.largest == 1);
  CHECK(w.headroom == doctest::Approx(std::log2(65504.0 / 1024)));
  CHECK(w.exponents[10 - amp::GradientGauge::kLowest] == 1);
  CHECK(r.flushed_share() == doctest::Approx(1.0 / 3));
  CHECK(r.subnormal_share() == doctest::Approx(1.0 / 3));
  CHECK(amp::examine(rig.amp, loss, 0x1p24).flushed_share() == 0);
}
}  // namespace

HT_ON_DEVICES("examine: every op is within its error budget", error_budget)
HT_ON_DEVICES("examine: leaves no trace", leaves_no_trace)
HT_ON_DEVICES("examine: every cast of a step", casts_of_a_step)
HT_ON_DEVICES("examine: the first op that is not finite", provenance)
HT_ON_DEVICES("examine: the underflow gauge", gauge)

TEST_CASE("examine: files are whole or not there") {
  Net n(Device::cpu(), amp::O1);
  n.step();
  const amp::StepReport r = n.examine();
  const auto folder = std::filesystem::temp_directory_path() / str("halftone_amp_report_", getpid());
  std::filesystem::create_directories(folder);
  const std::string path = (folder / "report.json").string();
  amp::write_json(r, path);
  amp::write_svg(r, path + ".svg");
  std::ifstream in(path);
  const auto json = nlohmann::json::parse(in);
  CHECK(json["loss_scale"] == 65536);
  CHECK(json["casts"].size() == r.casts.size());
  CHECK(json["casts"][5]["in_op"] == true);
  CHECK(json["casts"][5]["bytes"] == 0);
  CHECK(json["gradients"][0]["parameter"] == "0.weight");
  CHECK(json["errors"][0]["output_error"].get<double>() > 0);
  std::ostringstream svg;
  svg << std::ifstream(path + ".svg").rdbuf();
  CHECK(contains(svg.str(), "<svg"));
  CHECK(contains(svg.str(), "</svg>"));
  CHECK(contains(svg.str(), "6.bias"));
  CHECK(contains(error_of([&] { amp::write_json(r, (folder / "no/report.json").string()); }), "cannot write"));
  CHECK(std::distance(std::filesystem::directory_iterator(folder), {}) == 2);  // no rests
  std::filesystem::remove_all(folder);

  nn::Linear layer(1, 1);
  optim::Sgd sgd(layer.parameters());
  amp::Amp off = amp::initialize(layer, sgd, {.enabled = false});
  CHECK(contains(error_of([&] { amp::examine(off, [&] { return sum(layer.weight); }); }), "disabled"));
}
