// Checkpoints of a training run (docs/checkpoints.md): safetensors files from which a run goes on as if it had never
// stopped, bit for bit on the CPU.
#pragma once

#include <cstdint>
#include <future>
#include <string>

#include "amp/amp.h"
#include "autograd/module.h"
#include "core/safetensors.h"
#include "data/loader.h"
#include "models/options.h"
#include "optim/ema.h"
#include "optim/optimizer.h"

namespace ht::models {

// All that a run changes as it goes, besides this thread's random numbers.
struct RunState {
  Module& model;
  optim::Optimizer& optimizer;
  amp::Amp& amp;
  data::Loader& loader;
  const optim::Ema* ema = nullptr;  // null: no average of the weights
};

// A file's content, on the CPU: the model's tensors under their own names, "optimizer.*", "amp.*", "ema.*", and in the
// metadata the step, the loader's position, the random numbers' state and the options.
struct Snapshot {
  StateDict tensors;
  Metadata metadata;
};
Snapshot take_snapshot(const RunState& run, const TrainOptions& options, int64_t step);
// The inverse; gives the step. Throws Error naming the file when it is no checkpoint, or was made with other options
// than these (but the run's length may differ), or by another network or optimizer.
int64_t restore(const SafeTensors& file, const RunState& run, const TrainOptions& options);

// What a checkpoint tells of its network besides the tensors; nothing of this is in other files.
struct NetworkFacts {
  double width = 0;                      // 0: not told
  std::vector<std::string> class_names;  // empty: not told
};
// Throws Error naming the file when its metadata is damaged.
NetworkFacts network_facts(const SafeTensors& file);

// "500": steps, "2e": epochs; in steps. Throws Error on anything else, and on 0.
int64_t parse_interval(const std::string& text, int64_t steps_per_epoch);

// Does what --save, --save-every, --keep and --resume ask for, and nothing without them. The state is copied at once,
// a thread writes it: training does not wait for the disk.
class Checkpoints {
 public:
  // Makes the folder and removes what a killed run has left half-written. Throws Error when it cannot, and when the
  // folder holds the checkpoints of another run (--resume names none).
  Checkpoints(const TrainOptions& options, const RunState& run);

  // Goes back to the file that --resume names, or to the newest whole one in that folder, and gives its step. 0 without
  // --resume, and when --save names the same folder and nothing is in it yet.
  int64_t resume();
  // After each step, of which there are `step` now: saves when it is due. Throws Error when the write before failed.
  void step(int64_t step);
  // Saves the end of the run, or where a signal stopped it, and waits for the write. Throws Error when one failed.
  void finish(int64_t step);

 private:
  void save(int64_t step);

  TrainOptions options_;
  RunState run_;
  int64_t interval_ = 0;  // in steps
  int64_t saved_ = -1;    // the newest step that was saved
  std::future<void> writing_;
};

}  // namespace ht::models
