// The records of a training run: JSON lines in a file, and the numbers of steps and epochs as TensorBoard's scalars.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "amp/report.h"
#include "models/report.h"

namespace ht::models {

class RunLog {
 public:
  // Opens what --log and --tensorboard name, which may be nothing. Throws Error when a file cannot be written; so do
  // the functions below.
  explicit RunLog(const TrainOptions& options);
  ~RunLog();

  // `precision`: what is multiplied without mixed precision, "f32" or "tf32". Here and below `amp` is null without it.
  void config(const TrainOptions& options, const RunFacts& facts, int64_t epochs, const std::string& precision,
              const amp::Amp* amp);
  void step(int64_t step, int64_t epoch, const StepEntry& entry, const amp::Status* amp);
  void skip(int64_t step, const amp::Status& amp);
  void examined(int64_t step, const amp::StepReport& report);
  void diverged(int64_t steps);

  struct Epoch {
    int64_t epoch = 0, step = 0;
    double loss = 0, train_accuracy = 0, images_per_second = 0, lr = 0;
    size_t peak_memory_bytes = 0;
    double seconds = 0;
  };
  void epoch(const Epoch& epoch, const NamedEvaluations& evaluations, const amp::Status* amp);

  struct Summary {
    bool interrupted = false;
    int64_t steps = 0, epochs = 0;
    std::string chosen_by;                // the evaluation that the best one is of
    std::optional<double> best_accuracy;  // none: there was no such evaluation
    size_t peak_memory_bytes = 0;
    double seconds = 0, train_s = 0, warm_up_s = 0;
  };
  void summary(const Summary& summary, const NamedEvaluations& evaluations, const amp::Status* amp);

 private:
  struct Files;
  std::unique_ptr<Files> files_;  // null: nothing is written
};

}  // namespace ht::models
