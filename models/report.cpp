#include "models/report.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdarg>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/allocator.h"
#include "core/context.h"
#include "core/parallel.h"
#include "models/event_file.h"
#include "models/program.h"

namespace ht::models {

namespace {
using nlohmann::json;

__attribute__((format(printf, 1, 2))) std::string format(const char* text, ...) {
  char buffer[512];
  va_list args;
  va_start(args, text);
  std::vsnprintf(buffer, sizeof buffer, text, args);
  va_end(args);
  return buffer;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string clock_text(double seconds) {
  const auto s = static_cast<int64_t>(std::max(seconds, 0.0));
  return s >= 3600 ? format("%d:%02d:%02d", static_cast<int>(s / 3600), static_cast<int>(s / 60 % 60),
                            static_cast<int>(s % 60))
                   : format("%d:%02d", static_cast<int>(s / 60), static_cast<int>(s % 60));
}

size_t terminal_columns() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// "O1 f16, loss scale dynamic".
std::string precision_text(const amp::Amp& amp) {
  const amp::Settings& s = amp.settings();
  return str(name_of(s.level), " ", s.dtype, ", loss scale ", s.dynamic_scale ? "dynamic" : format("%g", s.scale));
}

std::string amp_text(const amp::Amp* amp, const amp::Status& status) {
  return amp ? format("  scale %g  skipped %d", status.scale, static_cast<int>(status.skipped_steps)) : "";
}

void add_amp(json& record, const amp::Amp* amp, const amp::Status& status) {
  if (!amp) return;
  record["loss_scale"] = status.scale;
  record["skipped_steps"] = status.skipped_steps;
  record["applied_steps"] = status.applied_steps;
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

// One object a line, flushed at once, so that a run that is killed leaves whole lines; the numbers of steps and epochs
// also as TensorBoard's scalars.
struct Reporter::Log {
  explicit Log(const TrainOptions& o) {
    if (!o.tensorboard.empty()) events.emplace(o.tensorboard);
    if (o.log.empty()) return;
    file.open(o.log, o.resume.empty() ? std::ios::trunc : std::ios::app);
    check(file.is_open(), "log: cannot write '", o.log, "'; does its folder exist, and may you write there? (--log)");
  }
  void write(const json& record) {
    const std::string type = record["type"];
    if (events && (type == "step" || type == "epoch"))
      for (const auto& [key, value] : record.items())
        if (value.is_number() && key != "step" && key != "epoch")
          events->scalar(str(type, '/', key), value.get<double>(), record["step"].get<int64_t>());
    if (!file.is_open()) return;
    file << record.dump() << '\n' << std::flush;
    check(file.good(), "log: a write failed; is the disk full? (--log)");
  }
  std::ofstream file;
  std::optional<EventFile> events;
};

Reporter::Reporter(const TrainOptions& options, const RunFacts& facts, const optim::Optimizer& optimizer,
                   const amp::Amp* amp)
    : options_(options),
      facts_(facts),
      optimizer_(optimizer),
      amp_(amp && amp->enabled() ? amp : nullptr),
      bar_(isatty(STDOUT_FILENO) && !options.quiet),
      step_log_(options.device),
      chosen_by_(facts.validation_images > 0 ? "validation" : "test") {
  if (!options.log.empty() || !options.tensorboard.empty()) log_ = std::make_unique<Log>(options);
  const int64_t per_epoch = std::max<int64_t>(facts.steps_per_epoch, 1);
  epochs_total_ = (facts.total_steps + per_epoch - 1) / per_epoch;
  steps_ = steps_read_ = facts.first_step;
  epochs_ = steps_ / per_epoch;
  if (amp_ && steps_ > 0) status_ = amp_->status();  // skips of the run before are not news
  examined_skips_ = status_.skipped_steps;
  const std::string idle = idle_flags(options);
  const std::string precision = options.tf32 && options.device.is_cuda() ? "tf32" : "f32";
  print(str("train_vgg16 ", version(), " | ", options.device, ", ", num_threads(), " threads",
            options.deterministic ? ", deterministic" : "", idle.empty() ? "" : str(" (no effect here: ", idle, ")"),
            " | ", amp_ ? precision_text(*amp_) : precision, " | ", facts.model, ", ", facts.parameters,
            " parameters | data: ", facts.data, ", ", facts.train_images, " training",
            facts.validation_images > 0 ? str(", ", facts.validation_images, " validation") : "", " and ",
            facts.test_images, " test images"));
  if (options.data.empty()) print("No --data given: these are generated drawings in CIFAR-10's format, not CIFAR-10.");
  if (!log_) return;
  log_->write({{"type", "config"},
               {"version", version()},
               {"device", str(options.device)},
               {"threads", num_threads()},
               {"dtype", amp_ ? str(amp_->settings().dtype) : precision},
               {"deterministic", options.deterministic},
               {"memory", name_of(options.memory)},
               {"tune", name_of(options.tune)},
               {"workspace_limit_mib", options.workspace_limit_mib},
               {"amp", amp_ ? name_of(amp_->settings().level) : "O0"},
               {"dynamic_loss_scale", amp_ && amp_->settings().dynamic_scale},
               {"model", facts.model},
               {"parameters", facts.parameters},
               {"data", facts.data},
               {"generated", options.data.empty()},
               {"train_images", facts.train_images},
               {"validation_images", facts.validation_images},
               {"test_images", facts.test_images},
               {"total_steps", facts.total_steps},
               {"epochs", epochs_total_},
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

Reporter::~Reporter() {
  if (bar_drawn_) std::fputs("\n", stdout);
}

void Reporter::step(const Var& loss, const Var& logits, const Var& labels) {
  step_log_.record(loss.value(), logits.value(), labels.value(), optimizer_.rate());
  if (is_recording()) return on_replay([this] { count_step(); });
  count_step();
}

// The host's part of a step. What it reads on the CPU stops a step before the update.
void Reporter::count_step() {
  ++steps_;
  if (steps_ == facts_.first_step + 1 && options_.tune == TuneMode::full) print_plans();
  if (steps_ <= facts_.first_step + kWarmUpSteps) {
    Context::of(options_.device).synchronize();
    warm_up_s_ = train_s_ + seconds_since(epoch_start_);
  }
  const bool last = steps_ == facts_.total_steps || steps_ == (epochs_ + 1) * facts_.steps_per_epoch;
  const bool full = steps_ - steps_read_ == StepLog::kSlots;
  if (!options_.device.is_cuda() || last || full)
    read_steps();
  else if (steps_ % options_.print_freq == 0)
    read_late();
  if (!options_.quiet) show_progress();
}

// One line a convolution or matrix product, by now all of them have run.
void Reporter::print_plans() {
  for (const PlanChoice& c : plan_choices())
    print(str("plan: ", c.problem, " -> ", c.plan, c.tensor_cores ? ", Tensor Cores" : ", no Tensor Cores"));
}

// The loss scale and counters; tells of steps that were skipped since the last look. Throws Error after too many.
void Reporter::read_status() {
  if (amp_) take_status(amp_->status());
}

void Reporter::take_status(amp::Status status) {
  const auto steps = [](const amp::Status& s) { return s.applied_steps + s.skipped_steps; };
  if (steps(status) < steps(status_)) return;  // asked for before the last look
  const int64_t before = std::exchange(status_, std::move(status)).skipped_steps;
  if (status_.skipped_steps == before) return;
  print(str("up to step ", steps_, ": ", status_.skipped_steps - before, " skipped, the last because ",
            status_.last_skip));
  if (log_)
    log_->write({{"type", "skip"},
                 {"step", steps_},
                 {"skipped_steps", status_.skipped_steps},
                 {"cause", status_.last_skip},
                 {"loss_scale", status_.scale}});
}

void Reporter::examine(amp::Amp& amp, const std::function<Var()>& loss) {
  if (options_.amp_report.empty() || !amp_) return;
  read_status();
  const bool skipped = status_.skipped_steps > std::exchange(examined_skips_, status_.skipped_steps);
  const bool last = steps_ == facts_.total_steps || steps_ == (epochs_ + 1) * facts_.steps_per_epoch;
  if (!skipped && !last) return;
  const amp::StepReport report = amp::examine(amp, loss, skipped ? status_.last_skip_scale : 0);
  if (skipped) print(str("step ", steps_, ": ", report.first_non_finite));
  if (log_)
    log_->write({{"type", "amp"},
                 {"step", steps_},
                 {"loss_scale", report.scale},
                 {"headroom_bits", report.least_headroom()},
                 {"flushed_share", report.flushed_share()},
                 {"subnormal_share", report.subnormal_share()},
                 {"largest_output_error", report.largest_output_error()},
                 {"first_non_finite", report.first_non_finite}});
  if (!last) return;
  amp::write_json(report, options_.amp_report);
  amp::write_svg(report, options_.amp_report + ".svg");
}

void Reporter::read_steps() {
  if (steps_read_ == steps_) return;
  const std::vector<StepEntry> entries = step_log_.read();
  read_status();
  take_steps(entries);
}

// What was asked for --print-freq steps ago, so that the device has more to do meanwhile; and asks for what is now.
void Reporter::read_late() {
  if (!late_) {
    std::vector<Tensor> sources{step_log_.memory()};
    if (amp_)
      for (const Tensor& t : amp_->status_sources()) sources.push_back(t);
    late_ = make_host_copy(std::move(sources));
  }
  if (late_->requested()) {
    const std::vector<Tensor> copies = late_->take();
    const std::vector<StepEntry> entries = step_log_.read(copies[0]);
    if (amp_) take_status(amp_->status_of(std::span(copies).subspan(1)));
    take_steps(entries);
  }
  late_->request();
}

void Reporter::take_steps(std::span<const StepEntry> entries) {
  for (const auto& [loss, lr, correct, images] : entries) {
    ++steps_read_;
    lr_ = lr;
    if (log_) {
      json record{{"type", "step"},
                  {"step", steps_read_},
                  {"epoch", epochs_ + 1},
                  {"loss", loss},
                  {"accuracy", static_cast<double>(correct) / static_cast<double>(images)},
                  {"lr", lr_}};
      add_amp(record, amp_, status_);
      log_->write(record);
    }
    if (std::isfinite(loss)) {
      loss_sum_ += loss * static_cast<double>(images);
      images_ += images;
      correct_ += correct;
      continue;
    }
    if (amp_) continue;  // the step will be skipped, and read_status tells
    if (log_) log_->write({{"type", "summary"}, {"status", "diverged"}, {"steps", steps_read_}});
    fail("step ", steps_read_, " (epoch ", epochs_ + 1, "): the loss is ", loss,
         "; training has diverged, try a smaller --lr (", lr_, " now)");
  }
  images_per_second_ = static_cast<double>(images_) / std::max(seconds_since(epoch_start_), 1e-9);
}

void Reporter::show_progress() {
  const int64_t in_epoch = steps_ - epochs_ * facts_.steps_per_epoch;
  const int64_t of_epoch = std::min(facts_.steps_per_epoch, facts_.total_steps - epochs_ * facts_.steps_per_epoch);
  const bool last = in_epoch == of_epoch;
  if (images_ == 0) return;  // nothing was read yet
  if (bar_ ? seconds_since(bar_time_) < 0.1 && !last : last || steps_ % options_.print_freq != 0) return;
  const double rate = images_per_second_, images = static_cast<double>(images_);
  const double left = static_cast<double>((facts_.total_steps - steps_) * options_.batch_size) / rate;
  std::string line = format("epoch %d/%d ", static_cast<int>(epochs_ + 1), static_cast<int>(epochs_total_));
  if (bar_) {
    const auto filled = static_cast<size_t>(20 * in_epoch / of_epoch);
    line.append(1, '[').append(filled, '=').append(20 - filled, '.').append("] ");
  }
  line += format("%d/%d  loss %.4f  train %.2f %%  %.0f images/s  lr %.5f  ETA %s", static_cast<int>(in_epoch),
                 static_cast<int>(of_epoch), loss_sum_ / images, 100 * static_cast<double>(correct_) / images, rate,
                 lr_, clock_text(left).c_str());
  line += amp_text(amp_, status_);
  if (!bar_) return print(line);
  const size_t columns = terminal_columns();
  if (line.size() >= columns) line.resize(columns - 1);
  std::printf("\r%s\x1b[K", line.c_str());
  std::fflush(stdout);
  bar_drawn_ = true;
  bar_time_ = Clock::now();
}

void Reporter::pause() {
  if (std::exchange(paused_, true)) return;
  Context::of(options_.device).synchronize();
  if (steps_ > facts_.first_step) train_s_ += seconds_since(epoch_start_);
}

void Reporter::evaluation(const Evaluation& evaluation, const std::string& name) {
  if (steps_ == facts_.first_step && options_.tune == TuneMode::full) print_plans();
  if (evaluation.cut_short) return;
  evaluations_.emplace_back(name, evaluation);
  std::erase_if(last_evaluations_, [&](const auto& last) { return last.first == name; });
  last_evaluations_.emplace_back(name, evaluation);
  if (name != chosen_by_ || evaluation.accuracy <= best_accuracy_) return;
  best_accuracy_ = evaluation.accuracy;
  best_epoch_ = epochs_ + 1;
}

void Reporter::epoch() {
  pause();
  read_steps();
  read_status();  // with the last step
  const NamedEvaluations evaluations = std::exchange(evaluations_, {});
  const double seconds = seconds_since(epoch_start_), images = static_cast<double>(std::max<int64_t>(images_, 1));
  const double loss = loss_sum_ / images, accuracy = static_cast<double>(correct_) / images;
  const size_t peak = memory_stats(options_.device).peak;
  ++epochs_;
  std::string line = format("epoch %d/%d  loss %.4f  train %.2f %%", static_cast<int>(epochs_),
                            static_cast<int>(epochs_total_), loss, 100 * accuracy);
  for (const auto& [name, e] : evaluations)
    line += format("  %s %.2f %% (loss %.4f)", name.c_str(), 100 * e.accuracy, e.loss);
  print(line +
        format("  %.0f images/s  lr %.5f  peak %.0f MiB  %.1f s", images_per_second_, lr_,
               static_cast<double>(peak) / (1 << 20), seconds) +
        amp_text(amp_, status_));
  if (log_) {
    json record{{"type", "epoch"}, {"epoch", epochs_},           {"step", steps_},
                {"loss", loss},    {"train_accuracy", accuracy}, {"images_per_second", images_per_second_},
                {"lr", lr_},       {"peak_memory_bytes", peak},  {"seconds", seconds}};
    add_evaluations(record, evaluations);
    add_amp(record, amp_, status_);
    log_->write(record);
  }
  loss_sum_ = 0;
  images_ = correct_ = 0;
  epoch_start_ = Clock::now();
  paused_ = false;
}

int Reporter::finish(int stop_signal) {
  read_steps();
  const double seconds = seconds_since(run_start_);
  std::string line = stop_signal == 0
                         ? "finished: "
                         : str("stopped by ", stop_signal == SIGTERM ? "SIGTERM" : "Ctrl-C", " after a whole step: ");
  line +=
      format("%d steps, %.1f epochs, %.1f s", static_cast<int>(steps_),
             static_cast<double>(steps_) / static_cast<double>(std::max<int64_t>(facts_.steps_per_epoch, 1)), seconds);
  if (train_s_ > 0)
    line += format("; training %.2f s, and %.2f s of its first steps", train_s_ - warm_up_s_, warm_up_s_);
  for (const auto& [name, e] : last_evaluations_) {
    line += format("; %s accuracy %.2f %%", name.c_str(), 100 * e.accuracy);
    if (name == chosen_by_)
      line += format(", best %.2f %% (epoch %d)", 100 * best_accuracy_, static_cast<int>(best_epoch_));
  }
  if (last_evaluations_.empty()) line += "; not evaluated";
  if (amp_)
    line += format("; %d steps applied, %d skipped, loss scale %g", static_cast<int>(status_.applied_steps),
                   static_cast<int>(status_.skipped_steps), status_.scale);
  print(line);
  if (log_) {
    json record{{"type", "summary"},
                {"status", stop_signal == 0 ? "finished" : "interrupted"},
                {"steps", steps_},
                {"epochs", epochs_},
                {str("best_", chosen_by_, "_accuracy"), best_epoch_ > 0 ? json(best_accuracy_) : json()},
                {"peak_memory_bytes", memory_stats(options_.device).peak},
                {"seconds", seconds},
                {"train_s", train_s_ - warm_up_s_},
                {"warm_up_s", warm_up_s_}};
    add_evaluations(record, last_evaluations_);
    add_amp(record, amp_, status_);
    log_->write(record);
  }
  return stop_signal == 0 ? 0 : 128 + stop_signal;
}

void Reporter::print(const std::string& line) {
  std::printf("%s%s\n", std::exchange(bar_drawn_, false) ? "\r\x1b[K" : "", line.c_str());
  std::fflush(stdout);
}

}  // namespace ht::models
