#include "models/report.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdarg>

#include "core/allocator.h"
#include "core/context.h"
#include "core/parallel.h"
#include "models/program.h"
#include "models/run_log.h"

namespace ht::models {

namespace {
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

std::string amp_text(const amp::Status* amp) {
  return amp ? format("  scale %g  skipped %d", amp->scale, static_cast<int>(amp->skipped_steps)) : "";
}
}  // namespace

Reporter::Reporter(const TrainOptions& options, const RunFacts& facts, const optim::Optimizer& optimizer,
                   const amp::Amp* amp)
    : options_(options),
      facts_(facts),
      optimizer_(optimizer),
      amp_(amp && amp->enabled() ? amp : nullptr),
      log_(std::make_unique<RunLog>(options)),
      bar_(isatty(STDOUT_FILENO) && !options.quiet),
      step_log_(options.device),
      chosen_by_(facts.validation_images > 0 ? "validation" : "test") {
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
  log_->config(options, facts, epochs_total_, precision, amp_);
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
  const bool full = steps_ - steps_read_ == StepLog::kSlots;
  if (!options_.device.is_cuda() || epoch_is_over() || full)
    read_steps();
  else if (steps_ % options_.print_freq == 0)
    read_late();
  if (!options_.quiet) show_progress();
}

// The newest step is the last of its epoch.
bool Reporter::epoch_is_over() const {
  return steps_ == facts_.total_steps || steps_ == (epochs_ + 1) * facts_.steps_per_epoch;
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
  log_->skip(steps_, status_);
}

void Reporter::examine(amp::Amp& amp, const std::function<Var()>& loss) {
  if (options_.amp_report.empty() || !amp_) return;
  read_status();
  const bool skipped = status_.skipped_steps > std::exchange(examined_skips_, status_.skipped_steps);
  if (!skipped && !epoch_is_over()) return;
  const amp::StepReport report = amp::examine(amp, loss, skipped ? status_.last_skip_scale : 0);
  if (skipped) print(str("step ", steps_, ": ", report.first_non_finite));
  log_->examined(steps_, report);
  if (!epoch_is_over()) return;
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
  for (const StepEntry& entry : entries) {
    const auto& [loss, lr, correct, images] = entry;
    ++steps_read_;
    lr_ = lr;
    log_->step(steps_read_, epochs_ + 1, entry, amp_status());
    if (std::isfinite(loss)) {
      loss_sum_ += loss * static_cast<double>(images);
      images_ += images;
      correct_ += correct;
      continue;
    }
    if (amp_) continue;  // the step will be skipped, and read_status tells
    log_->diverged(steps_read_);
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
  line += amp_text(amp_status());
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
        amp_text(amp_status()));
  log_->epoch({.epoch = epochs_,
               .step = steps_,
               .loss = loss,
               .train_accuracy = accuracy,
               .images_per_second = images_per_second_,
               .lr = lr_,
               .peak_memory_bytes = peak,
               .seconds = seconds},
              evaluations, amp_status());
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
  log_->summary({.interrupted = stop_signal != 0,
                 .steps = steps_,
                 .epochs = epochs_,
                 .chosen_by = chosen_by_,
                 .best_accuracy = best_epoch_ > 0 ? std::optional(best_accuracy_) : std::nullopt,
                 .peak_memory_bytes = memory_stats(options_.device).peak,
                 .seconds = seconds,
                 .train_s = train_s_ - warm_up_s_,
                 .warm_up_s = warm_up_s_},
                last_evaluations_, amp_status());
  return stop_signal == 0 ? 0 : 128 + stop_signal;
}

void Reporter::print(const std::string& line) {
  std::printf("%s%s\n", std::exchange(bar_drawn_, false) ? "\r\x1b[K" : "", line.c_str());
  std::fflush(stdout);
}

}  // namespace ht::models
