#include "models/run_log.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/parallel.h"
#include "models/event_file.h"
#include "models/program.h"

namespace ht::models {

namespace {
using nlohmann::json;

void add_amp(json& record, const amp::Status* amp) {
  if (!amp) return;
  record["loss_scale"] = amp->scale;
  record["skipped_steps"] = amp->skipped_steps;
  record["applied_steps"] = amp->applied_steps;
}

// Null for a test that did not happen.
void add_evaluations(json& record, const NamedEvaluations& evaluations) {
  record["test_loss"] = record["test_accuracy"] = nullptr;
  for (const auto& [name, e] : evaluations) {
    record[name + "_loss"] = e.loss;
    record[name + "_accuracy"] = e.accuracy;
  }
}
}  // namespace

// One object a line, flushed at once, so that a run that is killed leaves whole lines.
struct RunLog::Files {
  explicit Files(const TrainOptions& o) {
    if (!o.tensorboard.empty()) events.emplace(o.tensorboard);
    if (o.log.empty()) return;
    lines.open(o.log, o.resume.empty() ? std::ios::trunc : std::ios::app);
    check(lines.is_open(), "log: cannot write '", o.log, "'; does its folder exist, and may you write there? (--log)");
  }
  void write(const json& record) {
    const std::string type = record["type"];
    if (events && (type == "step" || type == "epoch"))
      for (const auto& [key, value] : record.items())
        if (value.is_number() && key != "step" && key != "epoch")
          events->scalar(str(type, '/', key), value.get<double>(), record["step"].get<int64_t>());
    if (!lines.is_open()) return;
    lines << record.dump() << '\n' << std::flush;
    check(lines.good(), "log: a write failed; is the disk full? (--log)");
  }
  void write(json record, const NamedEvaluations& evaluations, const amp::Status* amp) {
    add_evaluations(record, evaluations);
    add_amp(record, amp);
    write(record);
  }
  std::ofstream lines;
  std::optional<EventFile> events;
};

RunLog::RunLog(const TrainOptions& options) {
  if (!options.log.empty() || !options.tensorboard.empty()) files_ = std::make_unique<Files>(options);
}
RunLog::~RunLog() = default;

void RunLog::config(const TrainOptions& options, const RunFacts& facts, int64_t epochs, const std::string& precision,
                    const amp::Amp* amp) {
  if (!files_) return;
  files_->write({{"type", "config"},
                 {"version", version()},
                 {"device", str(options.device)},
                 {"threads", num_threads()},
                 {"dtype", amp ? str(amp->settings().dtype) : precision},
                 {"deterministic", options.deterministic},
                 {"memory", name_of(options.memory)},
                 {"tune", name_of(options.tune)},
                 {"workspace_limit_mib", options.workspace_limit_mib},
                 {"amp", amp ? name_of(amp->settings().level) : "O0"},
                 {"dynamic_loss_scale", amp && amp->settings().dynamic_scale},
                 {"model", facts.model},
                 {"parameters", facts.parameters},
                 {"data", facts.data},
                 {"generated", options.data.empty()},
                 {"train_images", facts.train_images},
                 {"validation_images", facts.validation_images},
                 {"test_images", facts.test_images},
                 {"total_steps", facts.total_steps},
                 {"epochs", epochs},
                 {"batch_size", options.batch_size},
                 {"lr", options.lr},
                 {"momentum", options.momentum},
                 {"nesterov", options.nesterov},
                 {"weight_decay", options.weight_decay},
                 {"decay_norm", options.decay_norm},
                 {"schedule", options.schedule},
                 {"label_smoothing", options.label_smoothing},
                 {"recipe", options.recipe},
                 {"head_lr", options.head_lr},
                 {"flip", options.alternate_flip ? "alternating" : "random"},
                 {"init", name_of(options.init)},
                 {"ema", options.ema},
                 {"ema_every", options.ema_every},
                 {"augment", name_of(options.augment)},
                 {"cutout", options.cutout},
                 {"width", options.width},
                 {"seed", options.seed}});
}

void RunLog::step(int64_t step, int64_t epoch, const StepEntry& entry, const amp::Status* amp) {
  if (!files_) return;
  json record{{"type", "step"},
              {"step", step},
              {"epoch", epoch},
              {"loss", entry.loss},
              {"accuracy", static_cast<double>(entry.correct) / static_cast<double>(entry.images)},
              {"lr", entry.lr}};
  add_amp(record, amp);
  files_->write(record);
}

void RunLog::skip(int64_t step, const amp::Status& amp) {
  if (!files_) return;
  files_->write({{"type", "skip"},
                 {"step", step},
                 {"skipped_steps", amp.skipped_steps},
                 {"cause", amp.last_skip},
                 {"loss_scale", amp.scale}});
}

void RunLog::examined(int64_t step, const amp::StepReport& report) {
  if (!files_) return;
  files_->write({{"type", "amp"},
                 {"step", step},
                 {"loss_scale", report.scale},
                 {"headroom_bits", report.least_headroom()},
                 {"flushed_share", report.flushed_share()},
                 {"subnormal_share", report.subnormal_share()},
                 {"largest_output_error", report.largest_output_error()},
                 {"first_non_finite", report.first_non_finite}});
}

void RunLog::diverged(int64_t steps) {
  if (files_) files_->write({{"type", "summary"}, {"status", "diverged"}, {"steps", steps}});
}

void RunLog::epoch(const Epoch& e, const NamedEvaluations& evaluations, const amp::Status* amp) {
  if (!files_) return;
  files_->write({{"type", "epoch"},
                 {"epoch", e.epoch},
                 {"step", e.step},
                 {"loss", e.loss},
                 {"train_accuracy", e.train_accuracy},
                 {"images_per_second", e.images_per_second},
                 {"lr", e.lr},
                 {"peak_memory_bytes", e.peak_memory_bytes},
                 {"seconds", e.seconds}},
                evaluations, amp);
}

void RunLog::summary(const Summary& s, const NamedEvaluations& evaluations, const amp::Status* amp) {
  if (!files_) return;
  files_->write({{"type", "summary"},
                 {"status", s.interrupted ? "interrupted" : "finished"},
                 {"steps", s.steps},
                 {"epochs", s.epochs},
                 {str("best_", s.chosen_by, "_accuracy"), s.best_accuracy ? json(*s.best_accuracy) : json()},
                 {"peak_memory_bytes", s.peak_memory_bytes},
                 {"seconds", s.seconds},
                 {"train_s", s.train_s},
                 {"warm_up_s", s.warm_up_s}},
                evaluations, amp);
}

}  // namespace ht::models
