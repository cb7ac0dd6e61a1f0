#include "models/prediction.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <iomanip>
#include <iostream>

#include "core/context.h"
#include "core/parallel.h"
#include "core/replace_file.h"
#include "models/fold.h"
#include "models/prediction_report.h"
#include "models/program.h"
#include "models/weights.h"
#include "ops/ops.h"

namespace ht::models {

namespace {
// The names that checkpoint and images bring must be the same; where neither has any, ten classes are CIFAR-10's.
std::vector<std::string> class_names(const LoadedNetwork& net, const std::vector<std::string>& of_images) {
  const auto& of_network = net.class_names;
  check(of_network.empty() || of_images.empty() || of_network == of_images, "predict: the network was trained on ",
        list_keys(of_network), "; these images are of ", list_keys(of_images));
  std::vector<std::string> names = of_network.empty() ? of_images : of_network;
  if (names.empty() && net.classes == 10)
    names = {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"};
  if (names.empty())
    for (int64_t i = 0; i < net.classes; ++i) names.push_back(str("class ", i));
  check(static_cast<int64_t>(names.size()) == net.classes, "predict: the network tells ", net.classes,
        " classes apart; there are ", names.size(), " names: ", list_keys(names));
  return names;
}

void write(const std::string& path, const std::string& content) {
  if (const auto failure = replace_file(path, content))
    fail("predict: cannot ", failure->what, " '", path, "': ", failure->cause, "; ", failure->remedy);
}
}  // namespace

void add_predict_options(CLI::App& app, PredictOptions& o) {
  o.device = cuda_device_count() > 0 ? Device::cuda(0) : Device::cpu();
  app.add_option("--weights", o.weights, "a checkpoint of train_vgg16, or safetensors of a VGG with PyTorch's names")
      ->required()
      ->type_name("FILE");
  app.add_option("--images", o.images,
                 "PNG, JPEG or PPM files, or labelled CIFAR-10 binary ones (of a folder: its test set)")
      ->required()
      ->type_name("DIR|FILE");
  app.add_flag("--ema", o.ema, "take a checkpoint's averaged weights");
  app.add_flag("--half", o.half, "compute in FP16");
  app.add_option("--top", o.top, "classes to tell of each image (default 5)")
      ->check(CLI::Range(1, 1'000'000))
      ->type_name("N");
  app.add_option("--json", o.json, "write a JSON line an image, and a summary if they are labelled")->type_name("FILE");
  app.add_option("--mistakes", o.mistakes, "draw the most confident mistakes on labelled images")
      ->type_name("FILE.svg")
      ->check(
          [](const std::string& name) { return name.ends_with(".svg") ? "" : "'" + name + "' is not an .svg file"; });
  app.add_option("--show", o.show, "how many of them (default 40)")->check(CLI::Range(1, 10'000))->type_name("N");
  app.add_option_function<std::string>(
         "--device",
         [&o](const std::string& name) {
           try {
             o.device = Device::parse(name);
           } catch (const Error& e) {
             throw CLI::ValidationError("--device", e.what());
           }
         },
         "cpu, cuda or cuda:N (default: cuda if there is one)")
      ->type_name("NAME");
  app.add_option("--threads", o.threads, "CPU threads (default: all cores)")
      ->check(CLI::Range(0, 4096))
      ->type_name("N");
  app.add_option("-b,--batch-size", o.batch_size, "images at a time (default 256)")
      ->check(CLI::Range(1, 1'000'000))
      ->type_name("N");
  app.add_option("--width", o.width, "of the network, where the file does not tell")
      ->check(CLI::Range(0.0, 16.0))
      ->type_name("N");
  for (const auto& [flag, values] : {std::pair("--mean", &o.normalization.mean), {"--std", &o.normalization.std}})
    app.add_option(flag, *values, "of red, green and blue that the network was trained with (default: train_vgg16's)")
        ->delimiter(',')
        ->type_name("R,G,B");
}

Tensor probabilities(Module& model, data::Loader& loader) {
  const no_grad guard;
  model.eval();
  Tensor all;
  int64_t done = 0;
  for (const auto& [x, y] : loader) {
    const Tensor p = softmax(cast(model(x), DType::f32)).value().to(Device::cpu());  // [n, classes]
    for (int64_t i = 0; i < p.numel(); ++i)
      check(finite_bits(p.data<float>()[i]), "predict: the network's answer to image ", done + i / p.dim(1),
            " is not finite; ",
            x.dtype() == DType::f16 ? "leave out --half, whose range may be too small" : "its weights are no good");
    if (!all) all = Tensor::empty({loader.dataset().size(), p.dim(1)});
    all.rows(done, done + p.dim(0)).copy_(p);
    done += p.dim(0);
  }
  return all;
}

void predict(const PredictOptions& o) {
  if (o.threads > 0) set_num_threads(o.threads);
  Context::of(o.device);  // throws here when the device is not there
  LoadedNetwork net = load_network(o.weights, {.ema = o.ema, .width = o.width});
  data::Pictures pictures = data::read_pictures(o.images, net.image);
  check(pictures.labelled || o.mistakes.empty(), "--mistakes: '", o.images,
        "' has no labels; give a CIFAR-10 binary file or folder");
  pictures.set.class_names = class_names(net, pictures.set.class_names);

  nn::fold_batch_norm_(net.model);
  net.model.to(o.device);
  if (o.half) net.model.to(DType::f16);
  std::cout << "predict " << version() << " | " << o.device << ", " << num_threads() << " threads | "
            << (o.half ? "f16" : "f32") << " | " << net.name << (o.ema ? ", averaged weights" : "") << " | "
            << pictures.set.size() << " images from " << pictures.set.source << '\n';
  if (!pictures.left_out.empty()) std::cout << "left out: " << printable(pictures.left_out) << '\n';

  const auto start = std::chrono::steady_clock::now();
  data::Loader loader(pictures.set, {.batch_size = o.batch_size,
                                     .shuffle = false,
                                     .normalization = o.normalization,
                                     .dtype = o.half ? DType::f16 : DType::f32,
                                     .device = o.device});
  const Predictions found{probabilities(net.model, loader), std::move(pictures)};
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  std::cout << '\n' << (found.pictures.labelled ? confusion_text(found) : top_text(found, o.top)) << '\n';
  std::cout << str(found.size(), " images in ", std::setprecision(3), seconds, " s\n");
  if (!o.json.empty()) write(o.json, json_lines(found, o.top));
  if (!o.mistakes.empty()) write(o.mistakes, mistakes_svg(found, o.show));
}

}  // namespace ht::models
