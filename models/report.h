// What a training run tells: lines or a progress bar on stdout, records in files (models/run_log.h).
#pragma once

#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "amp/report.h"
#include "core/captured_step.h"
#include "core/host_copy.h"
#include "models/options.h"
#include "models/step_log.h"
#include "optim/optimizer.h"

namespace ht::models {

struct Evaluation {
  double loss = 0;      // mean over the images
  double accuracy = 0;  // in [0, 1]
  int64_t images = 0;
  bool cut_short = false;  // a signal came before all images were seen
};

// By the name of what was evaluated: "test", "validation".
using NamedEvaluations = std::vector<std::pair<std::string, Evaluation>>;

struct RunFacts {
  std::string model;  // "vgg16 width 0.25"
  std::string data;   // where the images come from
  int64_t parameters = 0, train_images = 0, test_images = 0, validation_images = 0;
  int64_t steps_per_epoch = 0, total_steps = 0;
  int64_t first_step = 0;  // steps done by the run that this one goes on from
};

class RunLog;

class Reporter {
 public:
  // Opens the log (throws Error when it cannot be written), then prints the first line. Reads the rate of `optimizer`
  // and the loss scale and skipped steps of `amp`.
  Reporter(const TrainOptions& options, const RunFacts& facts, const optim::Optimizer& optimizer,
           const amp::Amp* amp = nullptr);
  ~Reporter();

  // In each step, before the optimizer moves the weights; in a CapturedStep, too, whose replays then count and read as
  // well. The values stay on the device and are read every print_freq steps and at an epoch's end (on the CPU: at
  // once), so that a step on CUDA does not wait. A loss that is not finite is an Error naming the step; under amp,
  // which skips that step, it is told and left out of the mean.
  void step(const Var& loss, const Var& logits, const Var& labels);
  // With --amp-report, after each step: names the op at fault when it was skipped; after the last one of an epoch
  // writes the report and its plot. `loss` computes the loss of the step's batch again.
  void examine(amp::Amp& amp, const std::function<Var()>& loss);
  // Before an epoch's evaluations: waits for the device and stops the clock of training until epoch().
  void pause();
  // An evaluation, before epoch(), and of what: "test", "validation". One that a signal cut short is dropped.
  void evaluation(const Evaluation& evaluation, const std::string& name);
  // After each epoch, or what was done of it.
  void epoch();
  // The summary. `stop_signal` 0: the run reached its end. Gives the exit code: 0, or 128 + signal.
  int finish(int stop_signal);

  int64_t steps() const { return steps_; }

 private:
  using Clock = std::chrono::steady_clock;
  void count_step();
  void read_steps();
  void read_late();
  void take_steps(std::span<const StepEntry> entries);
  void read_status();
  void take_status(amp::Status status);
  bool epoch_is_over() const;
  const amp::Status* amp_status() const { return amp_ ? &status_ : nullptr; }
  void show_progress();
  void print_plans();
  void print(const std::string& line);

  TrainOptions options_;
  RunFacts facts_;
  const optim::Optimizer& optimizer_;
  const amp::Amp* amp_;  // null without mixed precision
  std::unique_ptr<RunLog> log_;
  bool bar_ = false;  // stdout is a terminal
  bool bar_drawn_ = false;

  StepLog step_log_;
  std::unique_ptr<HostCopy> late_;  // on CUDA: the log and amp's state, looked at while later steps run
  int64_t steps_ = 0, steps_read_ = 0, epochs_ = 0, epochs_total_ = 0;
  double lr_ = 0, images_per_second_ = 0;
  amp::Status status_;
  int64_t examined_skips_ = 0;
  double loss_sum_ = 0;  // of this epoch's images
  int64_t images_ = 0, correct_ = 0;
  NamedEvaluations evaluations_, last_evaluations_;  // of this epoch; the newest
  std::string chosen_by_;  // the evaluation whose best is told: the validation where there is one
  double best_accuracy_ = -1;
  int64_t best_epoch_ = 0;
  Clock::time_point run_start_ = Clock::now(), epoch_start_ = run_start_, bar_time_{};
  bool paused_ = false;
  static constexpr int kWarmUpSteps = CapturedStep::kWarmUp + 1;  // plans are found, the step is recorded
  double train_s_ = 0, warm_up_s_ = 0;  // of all steps and of those alone, without evaluations
};

}  // namespace ht::models
