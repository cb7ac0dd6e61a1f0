#include "models/options.h"

#include <CLI/CLI.hpp>
#include <cmath>

#include "core/context.h"
#include "core/error.h"
#include "core/parallel.h"
#include "models/checkpoint.h"
#include "models/program.h"
#include "optim/schedule.h"

namespace ht::models {

namespace {
constexpr const char* kRecipe = "Recipe";
constexpr const char* kRun = "Run";
constexpr const char* kDevice = "Device";
constexpr const char* kReport = "Report";

// The flags of a training that was tuned as a whole; each that is given by name stands.
void fill_recipe(const CLI::App& app, TrainOptions& o) {
  check(o.recipe == "fast" || o.recipe == "best", "--recipe: '", o.recipe, "' is unknown; use fast or best");
  const bool best = o.recipe == "best";
  const auto take = [&](const char* flag, auto& field, auto value) {
    if (app.count(flag) == 0) field = value;
  };
  take("--epochs", o.epochs, best ? 47 : 20);
  take("--batch-size", o.batch_size, 256);
  take("--lr", o.lr, 0.1);
  take("--head-lr", o.head_lr, 0.1);
  take("--schedule", o.schedule, "triangular:0.2");
  take("--label-smoothing", o.label_smoothing, 0.1);
  take("--augment", o.augment, Augment::crop);
  take("--flip", o.alternate_flip, true);
  take("--cutout", o.cutout, best ? 12 : 8);
  take("--ema", o.ema, best ? 0.998 : 0.995);
  take("--init", o.init, Init::dirac);
  take("--decay-norm", o.decay_norm, false);
}

// What a flag that was not given becomes. On the CPU the generated set and a narrow network are learnt in a minute or
// two; CIFAR-10 and CUDA take the real network.
void fill_defaults(const CLI::App& app, TrainOptions& o) {
  const auto open = [&](const char* flag) { return app.count(flag) == 0; };
  if (open("--device")) o.device = cuda_device_count() > 0 ? Device::cuda(0) : Device::cpu();
  const bool generated = o.data.empty(), cpu = !o.device.is_cuda();
  if (open("--width")) o.width = cpu ? 0.125 : 1.0;
  if (!o.recipe.empty()) return fill_recipe(app, o);
  if (open("--epochs")) o.epochs = o.iterations > 0 ? o.iterations : generated ? 6 : 30;
  if (open("--batch-size")) o.batch_size = cpu ? 64 : generated ? 128 : 512;
  if (open("--lr")) o.lr = cpu ? (generated ? 0.05 : 0.01) : (generated ? 0.02 : 0.1);
  if (open("--augment")) o.augment = generated ? Augment::flip : Augment::crop;
}

constexpr std::string_view kInitNames[] = {"uniform", "kaiming", "dirac"};

Init parse_init(std::string_view text) {
  for (int i = 0; i < 3; ++i)
    if (text == kInitNames[i]) return static_cast<Init>(i);
  fail("--init: '", text, "' is unknown; use uniform, kaiming or dirac");
}

constexpr std::string_view kAugmentNames[] = {"none", "flip", "crop", "full"};

Augment parse_augment(std::string_view text) {
  for (int i = 0; i < 4; ++i)
    if (text == kAugmentNames[i]) return static_cast<Augment>(i);
  fail("--augment: '", text, "' is unknown; use none, flip, crop or full");
}
}  // namespace

std::string_view name_of(Init init) { return kInitNames[static_cast<int>(init)]; }

std::string_view name_of(Augment a) { return kAugmentNames[static_cast<int>(a)]; }

std::optional<int> parse_options(int argc, const char* const* argv, TrainOptions& o) {
  CLI::App app("Trains VGG16 on CIFAR-10, or on a generated set of ten classes when no data is given.", "train_vgg16");
  app.set_version_flag("--version", version_text());
  app.option_defaults()->always_capture_default(false)->take_last();  // given twice: the last one counts

  std::string device, augment, flip, init, tune, memory;
  int64_t seed = 0;
  bool asked_nesterov = false, plain_momentum = false, no_decay_norm = false;
  app.add_option("--data", o.data, "folder of CIFAR-10's binary files (without it: a generated set)")
      ->group(kRun)
      ->type_name("DIR");
  app.add_option("--device", device, "cpu, cuda or cuda:N (default: cuda if there is one)")
      ->group(kRun)
      ->type_name("NAME");
  app.add_option("--threads", o.threads, "CPU threads (default: all cores)")->group(kRun);
  app.add_option("--limit", o.limit, "use only the first N training images (0: all)")->group(kRun);
  app.add_option("--val-size", o.val_size,
                 "hold out N training images, by the seed: they are evaluated, the test set only at the end")
      ->group(kRun)
      ->type_name("N");
  app.add_option("--seed", seed, "of initialisation, shuffling, augmentation, dropout (default 0)")->group(kRun);

  app.add_option("--recipe", o.recipe,
                 "fast or best: sets the options of a whole training on CIFAR-10 (docs/training.md); those that are "
                 "given stand")
      ->group(kRecipe)
      ->type_name("NAME");
  app.add_option("--epochs", o.epochs, "passes over the training images")->group(kRecipe);
  app.add_option("--iterations", o.iterations, "stop after N steps (0: no limit)")->group(kRecipe);
  app.add_option("-b,--batch-size", o.batch_size, "images a step")->group(kRecipe);
  app.add_option("--width", o.width, "of the network: every channel count times this")->group(kRecipe);
  app.add_option("--lr,--learning-rate", o.lr, "learning rate, before the schedule")->group(kRecipe);
  app.add_option("--momentum", o.momentum, "of SGD (default 0.9)")->group(kRecipe);
  app.add_option("--weight-decay,--wd", o.weight_decay, "L2 penalty (default 5e-4)")->group(kRecipe);
  app.add_flag("--decay-norm", o.decay_norm, "weight decay on norms and biases, too (this is the default)")
      ->group(kRecipe);
  app.add_flag("--no-decay-norm", no_decay_norm, "none on norms and biases")->group(kRecipe)->excludes("--decay-norm");
  app.add_flag("--nesterov", asked_nesterov, "Nesterov's momentum (this is the default)")->group(kRecipe);
  app.add_flag("--no-nesterov", plain_momentum, "plain momentum")->group(kRecipe)->excludes("--nesterov");
  app.add_option(
         "--schedule", o.schedule,
         "constant, cosine, step:30e:0.1, multistep:60e,80e, onecycle, triangular, warmup:5e+... (default onecycle)")
      ->group(kRecipe)
      ->type_name("NAME[:...]");
  app.add_option("--amp", o.amp, "mixed precision: O0 (none, the default), O1, O2, O3, fp16 or bf16")
      ->group(kRecipe)
      ->type_name("LEVEL");
  app.add_option("--loss-scale", o.loss_scale, "dynamic, or a number that stays (default: the level's)")
      ->group(kRecipe)
      ->type_name("N");
  app.add_option("--policy", o.policy, "JSON file that changes which ops run in half: {\"relu\": \"deny\", ...}")
      ->group(kRecipe)
      ->type_name("FILE");
  app.add_option("--label-smoothing", o.label_smoothing, "in [0, 1) (default 0)")->group(kRecipe);
  app.add_option("--init", init,
                 "uniform (PyTorch's default), kaiming (normal, fan-out) or dirac (that, and the identity)")
      ->group(kRecipe)
      ->type_name("KIND");
  app.add_option("--weights", o.weights, "take the first weights from this file: a checkpoint, or PyTorch's names")
      ->group(kRecipe)
      ->type_name("FILE");
  app.add_option("--ema", o.ema, "decay a step of an average of the weights, evaluated beside them (0: none)")
      ->group(kRecipe)
      ->type_name("DECAY");
  app.add_option("--ema-every", o.ema_every, "steps between updates of that average (default 5)")->group(kRecipe);
  app.add_option("--augment", augment, "none, flip, crop (flip and pad-and-crop) or full (and cutout 8)")
      ->group(kRecipe)
      ->type_name("KIND");
  app.add_option("--flip", flip, "random (the default), or alternating: each image mirrored every other epoch")
      ->group(kRecipe)
      ->check(CLI::IsMember({"random", "alternating"}))
      ->type_name("KIND");
  app.add_option("--head-lr", o.head_lr, "learning rate of the last layer's weight, times --lr (default 1)")
      ->group(kRecipe);
  app.add_option("--cutout", o.cutout, "side of a square to erase (0: none)")->group(kRecipe);

  app.add_flag("--deterministic", o.deterministic, "the same bits run to run; plans are not tuned")->group(kDevice);
  app.add_flag("--tf32", o.tf32, "TF32 for convolutions and matrix products on CUDA (default: full FP32)")
      ->group(kDevice);
  app.add_option("--memory", memory,
                 "on CUDA: speed, or low to compute activations again in backward in place of keeping them (default "
                 "speed)")
      ->group(kDevice)
      ->check(CLI::IsMember({"speed", "low"}))
      ->type_name("MODE");
  app.add_option("--tune", tune,
                 "search for the fastest CUDA plans: off, fast or full (and list them); found ones are kept on disk "
                 "(default fast)")
      ->group(kDevice)
      ->type_name("MODE");
  app.add_option("--workspace-limit", o.workspace_limit_mib, "largest workspace of a CUDA plan in MiB (default 1024)")
      ->group(kDevice)
      ->type_name("MIB");
  app.add_flag("--eager", o.eager, "on CUDA launch a step's kernels singly, not as one graph")->group(kDevice);

  app.add_option("--eval", o.eval_every, "epochs between evaluations (default 1; 0: only after the last)")
      ->group(kReport);
  app.add_flag("-e,--evaluate", o.evaluate_only, "evaluate once, train nothing")->group(kReport);
  app.add_flag("--tta", o.tta, "at the end also the accuracy of the mean logits of each image and its mirror image")
      ->group(kReport);
  app.add_option("--log", o.log, "write a JSON line a step and an epoch")->group(kReport)->type_name("FILE");
  app.add_option("--tensorboard", o.tensorboard, "write the same numbers as TensorBoard's event file")
      ->group(kReport)
      ->type_name("DIR");
  app.add_option("--amp-report", o.amp_report, "write what --amp did to the numbers: JSON, and a plot FILE.svg")
      ->group(kReport)
      ->type_name("FILE");
  app.add_option("-p,--print-freq", o.print_freq, "steps between lines (default 50)")->group(kReport);
  app.add_option("--save", o.save, "write checkpoints there, and at the end or when stopped by a signal")
      ->group(kRun)
      ->type_name("DIR");
  app.add_option("--save-every", o.save_every, "steps (500) or epochs (2e) between checkpoints (default 1e)")
      ->group(kRun)
      ->type_name("N");
  app.add_option("--keep", o.keep, "newest checkpoints to keep (default 2; 0: all)")->group(kRun);
  app.add_option("--resume", o.resume, "go on from this checkpoint, or from the newest whole one in this folder")
      ->group(kRun)
      ->type_name("FILE|DIR");
  app.add_flag("-q,--quiet", o.quiet, "only the first line, the epochs and the summary")->group(kReport);

  if (const auto code = parse(app, argc, argv)) return code;
  try {
    if (!device.empty()) o.device = Device::parse(device);
    if (!augment.empty()) o.augment = parse_augment(augment);
    if (!init.empty()) o.init = parse_init(init);
    if (!tune.empty()) o.tune = parse_tune_mode(tune);
    if (!flip.empty()) o.alternate_flip = flip == "alternating";
    if (!memory.empty()) o.memory = parse_memory_mode(memory);
    check(
        !o.deterministic || tune.empty() || o.tune == TuneMode::off, "--tune: ", tune,
        " cannot go with --deterministic, which takes the first plan that works so that every run takes the same one");
    for (const char* flag : {"--save-every", "--keep"})
      check(app.count(flag) == 0 || !o.save.empty(), flag, ": nothing is saved without --save DIR");
    check(seed >= 0, "--seed: ", seed, " is negative");
    o.seed = static_cast<uint64_t>(seed);
    o.nesterov = !plain_momentum;
    fill_defaults(app, o);
    if (no_decay_norm) o.decay_norm = false;
    validate(o);
  } catch (const Error& e) {
    std::cerr << app.get_name() << ": " << e.what() << "\nRun with --help for the options.\n";
    return 2;
  }
  return std::nullopt;
}

std::string idle_flags(const TrainOptions& o) {
  if (o.device.is_cuda()) return "";
  const TrainOptions defaults;
  std::string flags;
  const auto idle = [&](const char* flag, bool given) {
    if (given) flags += str(flags.empty() ? "" : ", ", flag);
  };
  idle("--tf32", o.tf32 != defaults.tf32);
  idle("--tune", o.tune != defaults.tune);
  idle("--memory", o.memory != defaults.memory);
  idle("--workspace-limit", o.workspace_limit_mib != defaults.workspace_limit_mib);
  idle("--eager", o.eager);
  return flags;
}

void apply_settings(const TrainOptions& o) {
  if (o.threads > 0) set_num_threads(o.threads);
  set_deterministic(o.deterministic);
  set_tf32(o.tf32);
  set_tune_mode(o.tune);
  set_memory_mode(o.memory);
  set_workspace_limit(static_cast<size_t>(o.workspace_limit_mib) << 20);
}

void validate(const TrainOptions& o) {
  const auto at_least = [](const char* flag, auto value, auto least) {
    check(value >= least, flag, ": ", value, " is too small; use ", least, " or more");
  };
  const auto within = [](const char* flag, double value, double low, double high) {
    check(value >= low && value < high, flag, ": ", value, " is not in [", low, ", ", high, ")");  // false for NaN too
  };
  const auto finite = [](const char* flag, double value) {
    check(std::isfinite(value) && value >= 0, flag, ": ", value, " must be finite and not negative");
  };
  at_least("--epochs", o.epochs, 1);
  at_least("--iterations", o.iterations, 0);
  check(o.epochs <= 1'000'000 || o.iterations > 0, "--epochs: ", o.epochs, " is too large; use 1000000 or less");
  check(o.iterations <= 100'000'000, "--iterations: ", o.iterations, " is too large; use 100000000 or less");
  at_least("--batch-size", o.batch_size, 1);
  at_least("--limit", o.limit, 0);
  at_least("--val-size", o.val_size, 0);
  at_least("--threads", o.threads, 0);
  at_least("--cutout", o.cutout, 0);
  at_least("--eval", o.eval_every, 0);
  at_least("--workspace-limit", o.workspace_limit_mib, 0);
  check(o.workspace_limit_mib <= 1 << 20, "--workspace-limit: ", o.workspace_limit_mib,
        " is too large; it is in MiB, use 1048576 or less");
  at_least("--print-freq", o.print_freq, 1);
  at_least("--keep", o.keep, 0);
  parse_interval(o.save_every, 1);  // throws on one that is none
  finite("--lr", o.lr);
  finite("--head-lr", o.head_lr);
  finite("--weight-decay", o.weight_decay);
  within("--momentum", o.momentum, 0, 1);
  within("--label-smoothing", o.label_smoothing, 0, 1);
  within("--ema", o.ema, 0, 1);
  at_least("--ema-every", o.ema_every, 1);
  check(o.width > 0 && o.width <= 16, "--width: ", o.width, " must be in (0, 16]");
  check(!o.nesterov || o.momentum > 0, "--nesterov: needs a momentum above 0; add --no-nesterov");
  optim::parse_schedule(o.schedule, 1'000'000,
                        1'000);  // throws on one that is unknown
  const bool casts = amp::resolve(amp_options(o)).enabled;
  check(o.amp_report.empty() || casts, "--amp-report: --amp O0 casts nothing to report; add --amp O1");
}

amp::Options amp_options(const TrainOptions& o) {
  const auto flagged = [](const char* flag, auto&& f) {
    try {
      return f();
    } catch (const Error& e) {
      fail(flag, ": ", e.what());
    }
  };
  amp::Options options{.level = flagged("--amp", [&] { return amp::parse_level(o.amp); }), .policy_file = o.policy};
  if (!o.loss_scale.empty())
    options.loss_scale = flagged("--loss-scale", [&] { return amp::parse_loss_scale(o.loss_scale); });
  flagged("--amp", [&] { return amp::resolve(options); });
  return options;
}

}  // namespace ht::models
