// Checkpoints: a run that was stopped and resumed has the bits of one that was not; old files go, bad files are named.
#include <doctest/doctest.h>

#include "core/context.h"
#include "data/synthetic.h"
#include "models/checkpoint.h"
#include "models/trainer.h"
#include "models/vgg.h"
#include "ops/ops.h"
#include "optim/sgd.h"
#include "tests/data_helpers.h"

using namespace ht;
using namespace ht::models;
namespace fs = std::filesystem;
using data::TempFolder;

namespace {
constexpr int64_t kSteps = 10;  // 6 an epoch

TrainOptions small(const std::string& amp = "O0") {
  TrainOptions o;
  o.batch_size = 8;
  o.limit = 48;
  o.width = 0.05;
  o.augment = Augment::full;
  o.amp = amp;
  return o;
}

// A whole run in little, with dropout, so that all random numbers matter.
struct Run {
  explicit Run(const TrainOptions& o, uint64_t seed = 0)
      : options(o),
        loader(set(o.limit), train_loader_options(o)),
        model((manual_seed(seed), vgg({.width = o.width, .hidden = 64}))),
        sgd(model.parameters(), {.lr = 0.05, .momentum = 0.9, .nesterov = true, .weight_decay = 5e-4}),
        amp((sgd.set_schedule(optim::parse_schedule("onecycle", kSteps, loader.steps_per_epoch()), kSteps),
             amp::initialize(model, sgd, amp_options(o)))),
        ema(model, std::make_unique<nn::Sequential>(vgg({.width = o.width, .hidden = 64})), sgd,
            {.decay = 0.9, .every = 2}) {}

  static data::ImageDataset set(int64_t limit) {
    static const data::ImageDataset all = data::make_synthetic().train;
    return all.limit(limit);
  }
  RunState state() { return {model, sgd, amp, loader, &ema}; }

  void train(int64_t until, Checkpoints* checkpoints = nullptr) {
    while (steps < until) {
      for (const auto& [x, y] : loader) {
        sgd.zero_grad();
        amp.backward(cross_entropy(model(x), y));
        sgd.step();
        ++steps;
        ema.update(steps);
        if (checkpoints) checkpoints->step(steps);
        if (steps == until) break;
      }
    }
  }

  TrainOptions options;
  data::Loader loader;
  nn::Sequential model;
  optim::Sgd sgd;
  amp::Amp amp;
  optim::Ema ema;
  int64_t steps = 0;
};

void check_same(const Snapshot& a, const Snapshot& b) {
  CHECK(a.metadata == b.metadata);
  REQUIRE(a.tensors.size() == b.tensors.size());
  for (const auto& [name, tensor] : a.tensors) CHECK_MESSAGE(data::same_bytes(tensor, b.tensors.at(name)), name);
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

void cut(const fs::path& path) { fs::resize_file(path, fs::file_size(path) - 1); }
}  // namespace

TEST_CASE("some steps, a file, and the rest in a new run: the bits of one run without a stop") {
  for (const std::string level : {"O0", "O1", "O2"}) {
    for (const int64_t stop : {5, 6, 7}) {  // within an epoch, at its end, in the next one
      CAPTURE(level);
      CAPTURE(stop);
      const TempFolder folder;
      const std::string path = folder.path / "x";
      TrainOptions options = small(level);
      Snapshot whole;
      {
        Run run(options);
        run.train(kSteps);
        whole = take_snapshot(run.state(), options, run.steps);
      }
      {
        Run run(options);
        run.train(stop);
        const Snapshot half = take_snapshot(run.state(), options, run.steps);
        save_safetensors(path, half.tensors, half.metadata);
      }
      Run run(options, 99);  // other weights, other random numbers: all of it must come from the file
      run.steps = restore(SafeTensors(path), run.state(), options);
      CHECK(run.steps == stop);
      run.train(kSteps);
      check_same(take_snapshot(run.state(), options, run.steps), whole);
    }
  }
}

TEST_CASE("names and layouts are PyTorch's, all in FP32") {
  const TrainOptions options = small("O2");
  Run run(options);
  run.train(1);
  const Snapshot s = take_snapshot(run.state(), options, 1);
  CHECK(s.tensors.at("features.0.weight").shape() == Shape{8, 3, 3, 3});  // OIHW
  CHECK(s.tensors.at("features.0.weight").dtype() == DType::f32);
  CHECK(s.tensors.at("features.1.running_mean").dtype() == DType::f32);
  CHECK(s.tensors.at("features.1.num_batches_tracked").item() == 1);
  CHECK(s.tensors.at("optimizer.features.0.weight.momentum_buffer").numel() == 216);
  CHECK(s.tensors.at("optimizer.applied_steps").item() + s.tensors.at("amp.optimizer.0.skipped_steps").item() == 1);
  CHECK(s.tensors.at("amp.loss_scaler.0.scale").item() > 0);
  CHECK(s.metadata.at("format") == "pt");
}

TEST_CASE("Checkpoints saves when due, keeps the newest, and resumes from the newest whole one") {
  const TempFolder folder;
  TrainOptions options = small();
  options.save = folder.path / "run";
  options.save_every = "2";
  Snapshot whole;
  {
    Run run(options);
    Checkpoints checkpoints(options, run.state());
    CHECK(checkpoints.resume() == 0);
    run.train(7, &checkpoints);
    checkpoints.finish(7);  // where a signal stopped it
    CHECK(names_in(options.save) ==
          std::vector<std::string>{"step-000000006.safetensors", "step-000000007.safetensors"});
    run.train(kSteps);
    whole = take_snapshot(run.state(), options, kSteps);
  }
  Run second(options, 1);
  CHECK(contains(error_of([&] { Checkpoints(options, second.state()); }),
                 "holds checkpoints already, up to step-000000007.safetensors; add --resume"));

  // The newest is cut short, and a killed run has left a half-written file.
  options.resume = options.save;
  cut(fs::path(options.save) / "step-000000007.safetensors");
  std::ofstream(fs::path(options.save) / "step-000000008.safetensors.1-0.tmp") << "half";
  Checkpoints checkpoints(options, second.state());
  CHECK(names_in(options.save).size() == 2);
  second.steps = checkpoints.resume();
  CHECK(second.steps == 6);
  second.train(kSteps, &checkpoints);
  checkpoints.finish(kSteps);
  check_same(take_snapshot(second.state(), options, kSteps), whole);
  const SafeTensors last(fs::path(options.save) / "step-000000010.safetensors");
  check_same({last.tensors(), last.metadata()}, whole);
  CHECK(names_in(options.save).size() == 2);

  cut(fs::path(options.save) / "step-000000008.safetensors");
  cut(fs::path(options.save) / "step-000000010.safetensors");
  CHECK(contains(error_of([&] { checkpoints.resume(); }), "is whole; the oldest: safetensors: '"));
}

TEST_CASE("--keep 0 keeps all, --save-every counts epochs too, and without --save nothing is written") {
  const TempFolder folder;
  TrainOptions options = small();
  options.save = folder.path;
  options.keep = 0;
  Run run(options);
  Checkpoints checkpoints(options, run.state());  // every epoch: 6 steps
  for (int64_t step = 1; step <= 14; ++step) checkpoints.step(step);
  checkpoints.finish(14);
  CHECK(names_in(folder.path) == std::vector<std::string>{"step-000000006.safetensors", "step-000000012.safetensors",
                                                          "step-000000014.safetensors"});
  CHECK(parse_interval("500", 10) == 500);
  CHECK(parse_interval("2e", 10) == 20);
  for (const char* bad : {"", "e", "0", "-1", "1.5", "2x", "9223372036854775807e"})
    CHECK_MESSAGE(contains(error_of([&] { parse_interval(bad, 10); }), "is not a number of steps"), bad);

  options.save.clear();
  Checkpoints none(options, run.state());
  none.step(6);
  none.finish(6);
  CHECK(none.resume() == 0);
}

TEST_CASE("what cannot be resumed from, and why") {
  const TempFolder folder;
  TrainOptions options = small();
  Run run(options);
  const Snapshot good = take_snapshot(run.state(), options, 0);
  const auto says = [&](const StateDict& tensors, const Metadata& metadata, const TrainOptions& with) {
    const std::string path = folder.path / "x";
    save_safetensors(path, tensors, metadata);
    return error_of([&] { restore(SafeTensors(path), run.state(), with); });
  };
  CHECK(says(good.tensors, good.metadata, options) == "no error");
  CHECK(contains(says(good.tensors, {}, options), "is not a checkpoint of a training run"));

  TrainOptions other = options;
  other.batch_size = 16;
  other.lr = 0.25;
  const std::string differs = says(good.tensors, good.metadata, other);
  CHECK_MESSAGE(contains(differs, "was made with --batch-size 8 (now 16), --lr 0.05 (now 0.25)"), differs);
  other = options;
  other.epochs = 99;  // longer is allowed
  CHECK(says(good.tensors, good.metadata, other) == "no error");

  data::Loader other_data(data::random_set(48), train_loader_options(options));
  const SafeTensors file(folder.path / "x");
  CHECK(contains(error_of([&] {
                   restore(file, {run.model, run.sgd, run.amp, other_data}, options);
                 }),
                 "was made with their labels' fingerprint "));

  StateDict lacking = good.tensors;
  lacking.erase("features.0.weight");
  CHECK(contains(says(lacking, good.metadata, options), "1 missing [features.0.weight]"));
  lacking = good.tensors;
  lacking.erase("optimizer.applied_steps");
  CHECK(contains(says(lacking, good.metadata, options), "1 missing [applied_steps]"));

  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"\"step\":0", "\"step\":1"}, {"\"epoch\":0", "\"epoch\":-1"}, {"{", ""}, {"\"position\"", "\"p\""}}) {
    Metadata damaged = good.metadata;
    std::string& state = damaged.at("halftone.state");
    state.replace(state.find(from), from.size(), to);
    CHECK_MESSAGE(contains(says(good.tensors, damaged, options), "damaged"), state);
  }
  Metadata newer = good.metadata;
  std::string& state = newer.at("halftone.state");
  state.replace(state.find("\"checkpoint\":1"), 14, "\"checkpoint\":2");
  CHECK(contains(says(good.tensors, newer, options), "is of format 2, this program reads 1"));

  options.resume = folder.path / "absent";
  CHECK(contains(error_of([&] { Checkpoints(options, run.state()).resume(); }), "No such file"));
  fs::create_directories(options.resume);
  CHECK(contains(error_of([&] { Checkpoints(options, run.state()).resume(); }), "there is no checkpoint"));
  options.save = options.resume;  // a run that was killed before its first one
  CHECK(Checkpoints(options, run.state()).resume() == 0);
}

TEST_CASE("a write that fails comes to light at the next one, or at the end") {
  const TempFolder folder;
  TrainOptions options = small();
  options.save = folder.path / "run";
  Run run(options);
  Checkpoints checkpoints(options, run.state());
  fs::remove(options.save);
  checkpoints.step(6);
  CHECK(contains(error_of([&] { checkpoints.step(12); }), "does its folder exist"));
  CHECK(contains(error_of([&] { checkpoints.finish(13); }), "does its folder exist"));
  std::ofstream(folder.path / "file") << "x";
  options.save = folder.path / "file";
  CHECK(contains(error_of([&] { Checkpoints(options, run.state()); }), "--save: "));
}
