// Trains VGG16 on CIFAR-10: the whole of it, in reading order. Options, reports and evaluation are in models/options.*,
// models/report.* and models/trainer.*; the loop is here.
#include "halftone.h"

namespace {

using namespace ht;

int run(int argc, const char* const* argv) {
  models::TrainOptions options;
  if (const auto exit_code = models::parse_options(argc, argv, options)) return *exit_code;
  models::apply_settings(options);
  Context::of(options.device);  // throws here when the device is not there

  // The data: bytes in memory; the loader shuffles, augments and normalises them on a thread of its own.
  const models::DataSets sets = models::load_data(options);
  data::Loader train(sets.train, models::train_loader_options(options));

  // The network. One seed fixes its first weights, the order of the images and their augmentation.
  manual_seed(options.seed);
  const auto build = [&] { return models::vgg16({.classes = sets.train.classes(), .width = options.width}); };
  nn::Sequential model = build();
  models::initialise(model, options.init);
  if (!options.weights.empty()) models::load_weights(model, options.weights);
  model.to(options.device);

  // The optimizer and its learning rate as a function of the step.
  const int64_t steps = models::total_steps(options, train.steps_per_epoch());
  optim::Sgd sgd(models::parameter_groups(model, options));
  sgd.set_schedule(optim::parse_schedule(options.schedule, steps, train.steps_per_epoch()), steps);

  amp::Amp amp = amp::initialize(model, sgd, models::amp_options(options));  // --amp O0: does nothing

  // With --ema: the average of its weights over the last steps, in a network of its own.
  std::optional<optim::Ema> ema;
  if (options.ema > 0)
    ema.emplace(model, std::make_unique<nn::Sequential>(build()), sgd,
                optim::EmaOptions{.decay = options.ema, .every = options.ema_every});
  const auto average = [&] { return ema ? &ema->model() : nullptr; };
  models::Checkpoints checkpoints(
      options, {model, sgd, amp, train, ema ? &*ema : nullptr});  // --save and --resume; else they do nothing

  models::Reporter report(options,
                          {.model = str("vgg16 width ", options.width),
                           .data = sets.train.source,
                           .parameters = model.parameter_count(),
                           .train_images = sets.train.size(),
                           .test_images = sets.test.size(),
                           .validation_images = sets.validation.size(),
                           .steps_per_epoch = train.steps_per_epoch(),
                           .total_steps = steps,
                           .first_step = checkpoints.resume()},
                          sgd, &amp);
  const models::StopSignals stop;  // Ctrl-C: finish the step, then sum up
  models::Evaluator evaluate(options, sets, report, [&] { return bool(stop); });
  if (options.evaluate_only) {
    evaluate(model, nullptr, true);
    return report.finish(stop.received());
  }

  // One step; on CUDA, after a few of them, recorded as one graph and replayed: nothing in it reads a value back.
  const CrossEntropyOptions criterion{.label_smoothing = options.label_smoothing};
  const auto train_step = [&](std::span<const Tensor> batch) {
    const Var x = batch[0], y = batch[1];  // x [n, 32, 32, 3], y [n]
    sgd.zero_grad();
    const Var logits = model(x);  // [n, classes]
    const Var loss = cross_entropy(logits, y, criterion);
    amp.backward(loss);
    report.step(loss, logits, y);  // before the update: on the CPU in FP32 a loss that is not finite stops the run here
    sgd.step();
  };
  CapturedStep step(options.device, train_step, options.eager ? CapturedStep::kNever : CapturedStep::kWarmUp);

  for (int64_t epoch = train.position().epoch + 1; report.steps() < steps && !stop; ++epoch) {
    model.train();
    for (const auto& [x, y] : train) {
      step({x, y});
      if (ema) ema->update(report.steps());
      report.examine(amp, [&, x = x, y = y] { return cross_entropy(model(x), y, criterion); });  // --amp-report
      checkpoints.step(report.steps());
      if (report.steps() == steps || stop) break;
    }
    const bool last = report.steps() == steps, due = options.eval_every > 0 && epoch % options.eval_every == 0;
    if (!stop && (due || last)) evaluate(model, average(), last);
    report.epoch();
  }
  checkpoints.finish(report.steps());
  return report.finish(stop.received());
}

}  // namespace

int main(int argc, char** argv) {
  return ht::models::run_program("train_vgg16", [&] { return run(argc, argv); });
}
