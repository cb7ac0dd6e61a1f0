// The options of the training program, their defaults, their checks, and their command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "amp/options.h"
#include "core/device.h"
#include "core/tuning.h"

namespace ht::models {

enum class Init : uint8_t { uniform, kaiming, dirac };
std::string_view name_of(Init init);

enum class Augment : uint8_t { none, flip, crop, full };
std::string_view name_of(Augment a);

struct TrainOptions {
  std::string recipe;    // "fast" or "best": defaults of a whole training; empty: none
  std::string data;      // folder of CIFAR-10's binary files; empty: the generated set
  Device device;         // CUDA when there is one
  int threads = 0;       // 0: the machine's cores, or OMP_NUM_THREADS
  double width = 1.0;    // of vgg16
  int64_t limit = 0;     // training images used; 0: all
  int64_t val_size = 0;  // of those, held out for validation
  Augment augment = Augment::crop;
  bool alternate_flip = false;  // mirror each image every other epoch, not at random
  int64_t cutout = 0;           // side of the erased square; 0: none

  int64_t epochs = 30;
  int64_t iterations = 0;  // stop after this many steps; 0: no such limit
  int64_t batch_size = 128;
  double lr = 0.05;
  double momentum = 0.9;
  double weight_decay = 5e-4;
  bool decay_norm = true;  // weight decay on the parameters of norms and on biases, too
  double head_lr = 1;      // times the learning rate: that of the last layer's weight
  bool nesterov = true;
  std::string schedule = "onecycle";  // see optim/schedule.h
  double label_smoothing = 0;
  Init init = Init::uniform;  // PyTorch's default; or nn::kaiming_fan_out_, nn::kaiming_dirac_
  std::string weights;        // file to take the first weights from instead; empty: none
  double ema = 0;             // decay a step of the averaged weights; 0: none
  int64_t ema_every = 5;      // steps between updates of the average
  std::string amp = "O0";     // level of mixed precision, see amp/options.h
  std::string loss_scale;     // "dynamic" or a number; empty: the level's
  std::string policy;         // file that changes amp's lists
  uint64_t seed = 0;

  bool deterministic = false;
  bool tf32 = false;  // TF32 convolutions and matrix products; nothing on the CPU, like the next three
  MemoryMode memory = MemoryMode::speed;
  TuneMode tune = TuneMode::fast;      // see core/tuning.h
  int64_t workspace_limit_mib = 1024;  // of a convolution's or matrix product's plan
  bool eager = false;                  // single launches in place of a CUDA graph of the step

  int64_t eval_every = 1;  // epochs between evaluations; 0: only after the last
  bool evaluate_only = false;
  bool tta = false;               // at the end also by the mean logits of each test image and its mirror image
  std::string log;                // JSON lines; empty: none
  std::string tensorboard;        // folder for event files; empty: none
  std::string amp_report;         // what half precision did to the last batch: JSON here, and a plot beside it
  std::string save;               // folder for checkpoints; empty: none
  std::string save_every = "1e";  // steps, or epochs: "500", "2e"
  int64_t keep = 2;               // newest checkpoints that stay; 0: all
  std::string resume;             // checkpoint, or folder of them, to go on from
  int64_t print_freq = 50;        // steps between lines (or refreshes of the bar)
  bool quiet = false;             // epoch lines and the summary only
};

// What initialize takes. Throws Error naming the flag on a level, scale or policy file that amp refuses.
amp::Options amp_options(const TrainOptions& options);

// Reads the command line into `options`; what it does not name takes the defaults for its device and data. Gives the
// exit code when the program should stop here: 0 after --help or --version, 2 after bad usage (told on stderr).
std::optional<int> parse_options(int argc, const char* const* argv, TrainOptions& options);

// The flags among these options that do nothing on their device: "--tf32, --tune"; empty when all of them count.
std::string idle_flags(const TrainOptions& options);
// Sets what is the whole process's: threads, deterministic mode, TF32, tuning.
void apply_settings(const TrainOptions& options);

// Throws Error naming the flag and the value when a number is out of range or not finite.
void validate(const TrainOptions& options);

}  // namespace ht::models
