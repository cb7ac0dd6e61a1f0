#include "models/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "core/context.h"
#include "models/program.h"

namespace ht::models {

namespace {
namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kVersion = "halftone.version";
constexpr const char* kState = "halftone.state";
constexpr const char* kConfig = "halftone.config";
constexpr const char* kClasses = "halftone.classes";  // for whoever uses the network; does not matter to a resume
constexpr int kFormat = 1;                            // of the two JSON texts and the tensors' names

// Tells data sets apart: FNV-1a over the labels, which stand in the order of the images.
uint64_t fingerprint(const data::ImageDataset& set) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const int32_t label : std::span(set.labels.data<int32_t>(), static_cast<size_t>(set.size())))
    hash = (hash ^ static_cast<uint32_t>(label)) * 0x100000001b3;
  return hash;
}

// What decides where a run goes, by the flags that set it.
json config_of(const TrainOptions& o, const data::Loader& loader) {
  return {{"--batch-size", o.batch_size},
          {"--width", o.width},
          {"--seed", o.seed},
          {"--val-size", o.val_size},
          {"--augment", name_of(o.augment)},
          {"--flip", o.alternate_flip ? "alternating" : "random"},
          {"--cutout", o.cutout},
          {"--lr", o.lr},
          {"--momentum", o.momentum},
          {"--nesterov", o.nesterov},
          {"--weight-decay", o.weight_decay},
          {"--decay-norm", o.decay_norm},
          {"--head-lr", o.head_lr},
          {"--ema", o.ema},
          {"--ema-every", o.ema_every},
          {"--schedule", o.schedule},
          {"--label-smoothing", o.label_smoothing},
          {"--amp", o.amp},
          {"--loss-scale", o.loss_scale},
          {"--policy", o.policy},
          {"training images", loader.dataset().size()},
          {"their labels' fingerprint", fingerprint(loader.dataset())}};
}

// Names may hold bytes that are not UTF-8.
std::string json_text(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

json random_state(Device device) {
  const Generator& generator = Context::of(device).generator();
  return {{"seed", generator.seed()}, {"position", generator.position()}};
}

void set_random_state(Device device, const json& state) {
  Generator& generator = Context::of(device).generator();
  generator.manual_seed(state.at("seed").get<uint64_t>());
  generator.set_position(state.at("position").get<uint64_t>());
}

StateDict part(const StateDict& all, const std::string& prefix) {
  StateDict out;
  for (auto it = all.lower_bound(prefix); it != all.end() && it->first.starts_with(prefix); ++it)
    out[it->first.substr(prefix.size())] = it->second;
  return out;
}

// The step in "step-000001200.safetensors"; -1 for other names.
int64_t step_of(const fs::path& path) {
  const std::string name = path.filename().string(), before = "step-", after = ".safetensors";
  if (name.size() <= before.size() + after.size() || !name.starts_with(before) || !name.ends_with(after)) return -1;
  int64_t step = 0;
  const char* end = name.data() + name.size() - after.size();
  const auto [stop, error] = std::from_chars(name.data() + before.size(), end, step);
  return error == std::errc() && stop == end && step >= 0 ? step : -1;
}

std::string file_of(const std::string& folder, int64_t step) {
  char name[40];
  std::snprintf(name, sizeof name, "step-%09lld.safetensors", static_cast<long long>(step));
  return (fs::path(folder) / name).string();
}

// A folder's checkpoints, the newest first.
std::vector<fs::path> checkpoints_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    if (step_of(entry.path()) >= 0) found.push_back(entry.path());
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return step_of(a) > step_of(b); });
  return found;
}

// Removes all but the newest `keep` up to `step`: what lies beyond belongs to a run that went further.
void remove_old(const std::string& folder, int64_t step, int64_t keep) {
  if (keep == 0) return;
  for (const fs::path& path : checkpoints_in(folder)) {
    std::error_code error;
    if (step_of(path) <= step && keep-- <= 0) fs::remove(path, error);
  }
}
}  // namespace

Snapshot take_snapshot(const RunState& run, const TrainOptions& options, int64_t step) {
  Snapshot out{run.model.state_dict(), {}};
  for (const auto& [key, tensor] : run.optimizer.state_dict()) out.tensors["optimizer." + key] = tensor;
  for (const auto& [key, tensor] : run.amp.state_dict()) out.tensors["amp." + key] = tensor;
  if (run.ema)
    for (const auto& [key, tensor] : run.ema->model().state_dict()) out.tensors["ema." + key] = tensor;
  const data::LoaderPosition position = run.loader.position();
  const json state{{"checkpoint", kFormat},
                   {"step", step},
                   {"epoch", position.epoch},
                   {"epoch_step", position.step},
                   {"random_cpu", random_state(Device::cpu())},
                   {"random_device", random_state(options.device)}};
  out.metadata = {{"format", "pt"},  // names and layouts are PyTorch's
                  {kVersion, std::string(version())},
                  {kState, state.dump()},
                  {kConfig, json_text(config_of(options, run.loader))},
                  {kClasses, json_text(run.loader.dataset().class_names)}};
  return out;
}

NetworkFacts network_facts(const SafeTensors& file) {
  NetworkFacts facts;
  const auto read = [&](const char* key, auto&& take) {
    if (const auto it = file.metadata().find(key); it != file.metadata().end()) take(json::parse(it->second));
  };
  try {
    read(kConfig, [&](const json& config) { facts.width = config.at("--width").get<double>(); });
    read(kClasses, [&](const json& names) { names.get_to(facts.class_names); });
  } catch (const json::exception& e) {
    fail("weights: '", file.path(), "': its metadata is damaged: ", e.what());
  }
  return facts;
}

int64_t restore(const SafeTensors& file, const RunState& run, const TrainOptions& options) {
  const auto text = [&](const char* key) {
    const auto it = file.metadata().find(key);
    check(it != file.metadata().end(), "resume: '", file.path(), "' is not a checkpoint of a training run (no ", key,
          " in its metadata)");
    return it->second;
  };
  try {
    const json state = json::parse(text(kState)), config = json::parse(text(kConfig));
    check(state.at("checkpoint") == kFormat, "resume: '", file.path(), "' is of format ", state.at("checkpoint"),
          ", this program reads ", kFormat, "; it was written by ", text(kVersion), ", this is ", version());
    std::string differences;
    const json now = config_of(options, run.loader);
    for (const auto& [key, mine] : now.items()) {
      const json theirs = config.contains(key) ? config.at(key) : json();
      if (theirs != mine) differences += str(differences.empty() ? "" : ", ", key, " ", theirs, " (now ", mine, ")");
    }
    check(differences.empty(), "resume: '", file.path(), "' was made with ", differences, "; give the same options");

    const auto step = state.at("step").get<int64_t>();
    const data::LoaderPosition position{state.at("epoch").get<int64_t>(), state.at("epoch_step").get<int64_t>()};
    const int64_t per_epoch = run.loader.steps_per_epoch();
    check(position.step >= 0 && position.step < per_epoch && step >= position.step &&
              (step - position.step) % per_epoch == 0 && (step - position.step) / per_epoch == position.epoch,
          "resume: '", file.path(), "': step ", step, " is not step ", position.step, " of epoch ", position.epoch,
          " with ", per_epoch, " steps each; the file is damaged");
    StateDict model = file.tensors();
    const StateDict optimizer = part(model, "optimizer."), amp = part(model, "amp."), ema = part(model, "ema.");
    std::erase_if(model, [](const auto& item) {
      return item.first.starts_with("optimizer.") || item.first.starts_with("amp.") || item.first.starts_with("ema.");
    });
    run.model.load_state_dict(model);
    run.optimizer.load_state_dict(optimizer);
    run.amp.load_state_dict(amp);
    if (run.ema) run.ema->model().load_state_dict(ema);
    run.loader.seek(position);
    set_random_state(Device::cpu(), state.at("random_cpu"));
    set_random_state(options.device, state.at("random_device"));
    return step;
  } catch (const json::exception& e) {
    fail("resume: '", file.path(), "': its metadata is damaged: ", e.what());
  } catch (const Error& e) {
    const std::string what = e.what();
    fail(what.starts_with("resume: ") ? what : str("resume: '", file.path(), "': ", what));
  }
}

int64_t parse_interval(const std::string& text, int64_t steps_per_epoch) {
  const bool epochs = text.ends_with('e');
  const char* end = text.data() + text.size() - epochs;
  int64_t n = 0, steps = 0;
  const auto [stop, error] = std::from_chars(text.data(), end, n);
  check(
      error == std::errc() && stop == end && n > 0 && !__builtin_mul_overflow(n, epochs ? steps_per_epoch : 1, &steps),
      "--save-every: '", text, "' is not a number of steps (500) or epochs (2e)");
  return steps;
}

Checkpoints::Checkpoints(const TrainOptions& options, const RunState& run)
    : options_(options), run_(run), interval_(parse_interval(options.save_every, run.loader.steps_per_epoch())) {
  if (options.save.empty()) return;
  std::error_code error;
  fs::create_directories(options.save, error);
  check(!error, "--save: cannot make the folder '", options.save, "': ", error.message());
  const std::vector<fs::path> old = checkpoints_in(options.save);
  check(old.empty() || !options.resume.empty(), "--save: '", options.save, "' holds checkpoints already, up to ",
        old.empty() ? "" : old.front().filename().string(), "; add --resume ", options.save,
        " to go on from there, or name another folder");
  for (const fs::directory_entry& entry : fs::directory_iterator(options.save, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && name.ends_with(".tmp")) fs::remove(entry.path(), error);
  }
}

int64_t Checkpoints::resume() {
  const std::string& from = options_.resume;
  if (from.empty()) return 0;
  std::unique_ptr<SafeTensors> file;
  if (!fs::is_directory(from)) {
    file = std::make_unique<SafeTensors>(from);
  } else {
    const std::vector<fs::path> found = checkpoints_in(from);
    if (std::error_code error; found.empty() && !options_.save.empty() && fs::equivalent(from, options_.save, error)) {
      std::printf("resume: no checkpoint in '%s' yet, so this run begins at step 0\n", from.c_str());
      return 0;
    }
    check(!found.empty(), "--resume: there is no checkpoint (step-*.safetensors) in '", from, "'");
    for (size_t i = 0; i < found.size() && !file; ++i) {
      try {
        file = std::make_unique<SafeTensors>(found[i].string());
      } catch (const Error& e) {
        check(i + 1 < found.size(), "--resume: no checkpoint in '", from, "' is whole; the oldest: ", e.what());
        std::fprintf(stderr, "resume: %s; trying the one before it\n", e.what());
      }
    }
  }
  const int64_t step = restore(*file, run_, options_);
  std::printf("resumed from '%s' after step %lld\n", file->path().c_str(), static_cast<long long>(step));
  return step;
}

void Checkpoints::step(int64_t step) {
  if (!options_.save.empty() && step % interval_ == 0) save(step);
}

void Checkpoints::finish(int64_t step) {
  if (!options_.save.empty() && saved_ != step) save(step);
  if (writing_.valid()) writing_.get();
}

void Checkpoints::save(int64_t step) {
  if (writing_.valid()) writing_.get();
  writing_ = std::async(std::launch::async, [snapshot = take_snapshot(run_, options_, step), folder = options_.save,
                                             step, keep = options_.keep] {
    save_safetensors(file_of(folder, step), snapshot.tensors, snapshot.metadata);
    remove_old(folder, step, keep);
  });
  saved_ = step;
}

}  // namespace ht::models
