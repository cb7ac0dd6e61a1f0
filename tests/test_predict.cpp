// Prediction: what a person is shown, worked out by hand; and the program on a small set, beside evaluate().
#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tuple>

#include "core/context.h"
#include "core/safetensors.h"
#include "data/cifar10.h"
#include "data/image_file.h"
#include "data/synthetic.h"
#include "models/fold.h"
#include "models/prediction.h"
#include "models/prediction_report.h"
#include "models/trainer.h"
#include "models/vgg.h"
#include "models/weights.h"
#include "tests/data_helpers.h"
#include "tests/on_devices.h"
#include "tests/process.h"

using namespace ht;
using namespace ht::models;
using nlohmann::json;

namespace {
std::vector<json> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<json> out;
  for (std::string line; std::getline(in, line);) out.push_back(json::parse(line));
  return out;
}

// Four images of three classes; the last two are taken for another one.
Predictions four() {
  Predictions p{Tensor::from({0.5, 0.5, 0, 0.25, 0.625, 0.125, 0, 0.125, 0.875, 0.125, 0.75, 0.125}, {4, 3}), {}};
  p.pictures.set = data::random_set(4, 2, 2);
  p.pictures.set.class_names = {"ant", "b<e>&", "crocodile"};
  p.pictures.set.labels.copy_(Tensor::from({0, 1, 0, 2}, {4}, DType::i32));
  p.pictures.names = {"x:0", "x:1", "x:2", "x:3"};
  p.pictures.labelled = true;
  return p;
}

std::string from_base64(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0, count = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<uint32_t>(digits.find(c));
    if (count += 6; count >= 8) bytes += static_cast<char>(bits >> (count -= 8));
  }
  return bytes;
}
}  // namespace

TEST_CASE("the most probable classes, of equal ones the first; a line an image") {
  const Predictions p = four();
  CHECK(p.top(0, 2) == std::vector<int64_t>{0, 1});
  CHECK(p.top(2, 9) == std::vector<int64_t>{2, 1, 0});
  CHECK(top_text(p, 2) ==
        "x:0  ant 50.0 %        b<e>& 50.0 %\n"
        "x:1  b<e>& 62.5 %      ant 25.0 %\n"
        "x:2  crocodile 87.5 %  b<e>& 12.5 %\n"
        "x:3  b<e>& 75.0 %      ant 12.5 %\n");
}

TEST_CASE("accuracy, accuracy of each class, confusion matrix") {
  CHECK(confusion_of(four()) == Confusion{{1, 0, 1}, {0, 1, 0}, {0, 1, 0}});
  CHECK(confusion_text(four()) ==
        "accuracy 50.0 % (2 of 4); a row a class, a column what it was taken for\n\n"
        "class      images   right  ant  b<e>&  croco\n"
        "ant             2  50.0 %    1      0      1\n"
        "b<e>&           1   100 %    0      1      0\n"
        "crocodile       1   0.0 %    0      1      0\n");
}

TEST_CASE("JSON lines") {
  const std::vector<json> lines = lines_of(json_lines(four(), 1));
  REQUIRE(lines.size() == 5);
  CHECK(lines[2] == json::parse(R"({"type": "image", "image": "x:2", "label": "ant", "correct": false,
                                    "top": [{"class": "crocodile", "probability": 0.875}]})"));
  CHECK(lines[4] == json::parse(R"({"type": "summary", "images": 4, "accuracy": 0.5,
                                    "classes": ["ant", "b<e>&", "crocodile"], "class_accuracy": [0.5, 1, 0],
                                    "confusion": [[1, 0, 1], [0, 1, 0], [0, 1, 0]]})"));
  Predictions unlabelled = four();
  unlabelled.pictures.labelled = false;
  const std::vector<json> rest = lines_of(json_lines(unlabelled, 3));
  REQUIRE(rest.size() == 4);
  CHECK(!rest[0].contains("label"));
  CHECK(rest[0]["top"].size() == 3);
}

TEST_CASE("the worst mistakes as SVG: the most confident first, the image's own pixels, names escaped") {
  const Predictions p = four();
  std::string svg;
  const std::string error = error_of([&] { svg = mistakes_svg(p, 40); });
  if (contains(error, "built without libpng")) {
    MESSAGE("SKIPPED: ", error);
    return;
  }
  CHECK(error == "no error");
  CHECK(contains(svg, ">2 of 4 images taken for another class</text>"));
  CHECK(contains(svg, ">crocodile 87.5 %</text>"));
  CHECK(contains(svg, ">is: ant 0.0 %</text>"));
  CHECK(contains(svg, ">b&lt;e&gt;&amp; 75.0 %</text>"));
  CHECK(svg.find(">x:2<") < svg.find(">x:3<"));

  const std::string before = "data:image/png;base64,";
  const size_t begin = svg.find(before) + before.size();
  const Folder folder;
  std::ofstream(folder / "a.png", std::ios::binary) << from_base64(svg.substr(begin, svg.find('"', begin) - begin));
  CHECK(data::same_bytes(data::read_image(folder / "a.png"), p.pictures.set.images.rows(2, 3).view({2, 2, 3})));

  const std::string one = mistakes_svg(p, 1);
  CHECK(contains(one, ">2 of 4 images taken for another class; the 1 most confident mistakes</text>"));
  CHECK(!contains(one, ">x:3<"));
}

namespace {
// A network that was trained a little on a small set of generated images, in files.
struct Trained {
  Folder folder;
  data::TrainTest sets = data::make_synthetic({.train = 64, .test = 50});
  std::string data = folder / "data", weights = folder / "run/step-000000012.safetensors";

  Trained() {
    data::write_cifar10(data, sets);
    const Result r = run("train_vgg16", {"--data", data, "--device", "cpu", "--width", "0.05", "-b", "16", "--epochs",
                                         "3", "--ema", "0.9", "--eval", "0", "--save", folder / "run"});
    REQUIRE_MESSAGE(r.code == 0, r.err);
  }
  Result run(const std::string& name, const std::vector<std::string>& args) const {
    return Process(program(name), args, folder).wait();
  }
  Result predict(const std::string& images, std::vector<std::string> more = {}) const {
    more.insert(more.end(),
                {"--weights", weights, "--images", images, "--device", "cpu", "--json", folder / "out.jsonl"});
    return run("predict", more);
  }
  std::vector<json> out() const { return lines_of(read(folder / "out.jsonl")); }
};
}  // namespace

TEST_CASE("the program on labelled images: what evaluate() finds, class by class, with either weights") {
  const Trained t;
  for (const bool ema : {false, true}) {
    LoadedNetwork net = load_network(t.weights, {.ema = ema});
    CHECK(net.name == "vgg16 width 0.05");
    CHECK(net.class_names == t.sets.test.class_names);
    data::Loader loader(t.sets.test, {.batch_size = 20, .shuffle = false});
    const Evaluation wanted = evaluate(net.model, loader);

    std::vector<std::string> flags{"--top", "2", "-b", "7", "--mistakes", t.folder / "worst.svg"};
    if (ema) flags.push_back("--ema");
    const Result r = t.predict(t.data, flags);
    if (!contains(r.err, "built without libpng")) CHECK_MESSAGE(r.code == 0, r.err);
    CHECK(contains(r.out, "accuracy "));
    CHECK(contains(r.out, ema ? "vgg16 width 0.05, averaged weights | 50 images" : "vgg16 width 0.05 | 50 images"));
    const std::vector<json> lines = t.out();
    REQUIRE(lines.size() == 51);
    const json& summary = lines.back();
    CHECK(summary["accuracy"].get<double>() == doctest::Approx(wanted.accuracy));
    double loss = 0;
    const std::vector<int64_t> counts = t.sets.test.class_counts();
    for (size_t c = 0; c < 10; ++c) {
      const auto row = summary["confusion"][c].get<std::vector<int64_t>>();
      CHECK(std::accumulate(row.begin(), row.end(), int64_t{0}) == counts[c]);
      CHECK(summary["class_accuracy"][c].get<double>() == doctest::Approx(static_cast<double>(row[c]) / 5));
    }
    CHECK(t.predict(t.data,
                    ema ? std::vector<std::string>{"--ema", "--top", "10"} : std::vector<std::string>{"--top", "10"})
              .code == 0);
    for (const json& line : t.out())
      if (line["type"] == "image")
        for (const json& top : line["top"])
          if (top["class"] == line["label"]) loss -= std::log(top["probability"].get<double>()) / 50;
    CHECK(loss == doctest::Approx(wanted.loss).epsilon(1e-4));
  }
}

TEST_CASE("pictures in a folder get what the same images in a CIFAR-10 file get; in half nearly so") {
  const Trained t;
  fs::create_directories(t.folder / "some");
  for (int64_t i = 0; i < 3; ++i) {
    const Tensor image = t.sets.test.images.rows(i, i + 1);
    std::ofstream file(t.folder / ("some/" + std::to_string(i) + ".ppm"), std::ios::binary);
    file << "P6 32 32 255\n";
    file.write(static_cast<const char*>(image.data()), static_cast<std::streamsize>(image.bytes()));
  }
  std::ofstream(t.folder / "some/readme.txt") << "x";
  REQUIRE(t.predict(t.data).code == 0);
  const std::vector<json> wanted = t.out();
  Result r = t.predict(t.folder / "some");
  CHECK_MESSAGE(r.code == 0, r.err);
  CHECK(contains(r.out, "left out: 1 other entry (readme.txt)"));
  CHECK(contains(r.out, "\n0.ppm  "));
  const std::vector<json> got = t.out();
  REQUIRE(got.size() == 3);
  for (size_t i = 0; i < 3; ++i)
    for (size_t k = 0; k < 5; ++k) {
      CHECK(got[i]["top"][k]["class"] == wanted[i]["top"][k]["class"]);
      CHECK(got[i]["top"][k]["probability"].get<double>() ==
            doctest::Approx(wanted[i]["top"][k]["probability"].get<double>()));
    }

  CHECK(t.predict(t.folder / "some/1.ppm", {"--half"}).code == 0);
  const json half = t.out()[0]["top"][0], full = got[1]["top"][0];
  CHECK(std::abs(half["probability"].get<double>() - full["probability"].get<double>()) < 0.01);
  CHECK(half["probability"] != full["probability"]);
  CHECK(t.predict(t.folder / "some/1.ppm", {"--mean", "0.5,0.5,0.5", "--std", "0.5,0.5,0.5"}).code == 0);
  CHECK(std::abs(t.out()[0]["top"][0]["probability"].get<double>() - full["probability"].get<double>()) > 1e-5);

  const Result tool =
      t.run("halftone", {"predict", "--weights", t.weights, "--images", t.folder / "some", "--device", "cpu"});
  CHECK(tool.code == 0);
  CHECK(contains(tool.out, "\n2.ppm  "));
}

TEST_CASE("what cannot be done is told, and no file appears") {
  const Trained t;
  std::ofstream(t.folder / "bad.png") << "no picture";
  std::ofstream(t.folder / "one.ppm") << "P6 1 1 255\nabc";
  const std::string meta = t.data + "/batches.meta.txt", names = read(meta);
  const std::vector<std::tuple<std::string, std::vector<std::string>, std::string>> cases{
      {t.folder / "bad.png", {}, "is not a PNG, JPEG or binary PPM (P6)"},
      {t.folder / "none", {}, "no such file or folder"},
      {t.folder / "one.ppm", {"--mistakes", "x.svg"}, "has no labels; give a CIFAR-10 binary file"},
      {t.data, {"--json", t.folder / "no/such.json"}, "no/such.json'"}};
  for (const auto& [images, flags, reason] : cases) {
    std::vector<std::string> args{"--weights", t.weights, "--images", images, "--device", "cpu"};
    args.insert(args.end(), flags.begin(), flags.end());
    const Result r = t.run("predict", args);
    CHECK(r.code == 1);
    CHECK_MESSAGE(contains(r.err, reason), r.err);
    CHECK(!fs::exists("x.svg"));
  }
  std::ofstream(meta) << "airplane\nb\nc\nd\ne\nf\ng\nh\ni\nj\n";
  Result r = t.predict(t.data);
  CHECK(r.code == 1);
  CHECK_MESSAGE(contains(r.err, "the network was trained on disc, ring"), r.err);
  CHECK(contains(r.err, "these images are of airplane, b"));

  StateDict state = load_network(t.weights).model.state_dict();
  state.at("features.0.weight").fill_(NAN);
  save_safetensors(t.folder / "nan.safetensors", state);
  r = t.run("predict",
            {"--weights", t.folder / "nan.safetensors", "--images", t.folder / "one.ppm", "--width", "0.05"});
  CHECK(r.code == 1);
  CHECK_MESSAGE(contains(r.err, "answer to image 0 is not finite; its weights are no good"), r.err);
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{},
                                             {"--weights", "x"},
                                             {"--weights", "x", "--images", "y", "--top", "0"},
                                             {"--weights", "x", "--images", "y", "--mistakes", "z.png"},
                                             {"--weights", "x", "--images", "y", "--device", "tpu"}})
    CHECK(t.run("predict", args).code == 2);
  CHECK(t.run("predict", {"--version"}).code == 0);
}

namespace {
void check_half(Device device) {
  manual_seed(1);
  nn::Sequential net = vgg16({.width = 0.125});
  nn::fold_batch_norm_(net);
  net.to(device);
  const data::ImageDataset set = data::random_set(9);
  const auto run = [&](DType dtype) {
    net.to(dtype);
    data::Loader loader(set, {.batch_size = 4, .shuffle = false, .dtype = dtype, .device = device});
    return probabilities(net, loader);
  };
  const Tensor full = run(DType::f32), half = run(DType::f16);
  REQUIRE(full.shape() == Shape{9, 10});
  CHECK(half.dtype() == DType::f32);
  for (int64_t i = 0; i < full.numel(); ++i) CHECK(std::abs(full.at(i) - half.at(i)) < 2e-3);
}
}  // namespace

HT_ON_DEVICES("a folded network in half precision, in batches with a smaller last one", check_half)
