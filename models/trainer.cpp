#include "models/trainer.h"

#include <algorithm>

#include "data/cifar10.h"
#include "data/synthetic.h"
#include "models/init.h"
#include "ops/ops.h"

namespace ht::models {

DataSets load_data(const TrainOptions& o) {
  const data::TrainTest all = o.data.empty() ? data::make_synthetic() : data::read_cifar10(o.data);
  DataSets sets{all.train, all.test, {}};
  if (o.limit > 0) sets.train = sets.train.limit(o.limit);
  check(o.val_size < sets.train.size(), "--val-size: ", o.val_size, " leaves none of the ", sets.train.size(),
        " training images to train on");
  if (o.val_size > 0) {
    const data::TrainTest parts = data::split(sets.train, o.val_size, o.seed);
    sets.train = parts.train;
    sets.validation = parts.test;
  }
  check(o.batch_size <= sets.train.size(), "--batch-size: ", o.batch_size, " is larger than the training set of ",
        sets.train.size(), " images");
  return sets;
}

data::LoaderOptions train_loader_options(const TrainOptions& o) {
  const bool crop = o.augment == Augment::crop || o.augment == Augment::full;
  data::AugmentOptions augment{.flip = o.augment == Augment::none ? data::Flip::none
                                       : o.alternate_flip         ? data::Flip::alternating
                                                                  : data::Flip::random,
                               .crop_pad = crop ? 4 : 0,
                               .cutout = static_cast<int>(o.cutout)};
  if (o.augment == Augment::full && o.cutout == 0) augment.cutout = 8;
  return {.batch_size = o.batch_size, .drop_last = true, .augment = augment, .seed = o.seed, .device = o.device};
}

data::LoaderOptions test_loader_options(const TrainOptions& o) {
  data::LoaderOptions options;
  options.batch_size = std::max<int64_t>(o.batch_size, 100);
  options.shuffle = false;
  options.device = o.device;
  return options;
}

void initialise(const Module& model, Init init) {
  if (init == Init::kaiming) nn::kaiming_fan_out_(model);
  if (init == Init::dirac) nn::kaiming_dirac_(model);
}

std::vector<optim::ParamGroup<optim::SgdOptions>> parameter_groups(const Module& model, const TrainOptions& o) {
  const optim::SgdOptions sgd{
      .lr = o.lr, .momentum = o.momentum, .nesterov = o.nesterov, .weight_decay = o.weight_decay};
  optim::ParamGroup<optim::SgdOptions> weights{{}, sgd}, norms{{}, sgd}, head{{}, sgd};
  if (!o.decay_norm) norms.options.weight_decay = 0;
  head.options.lr *= o.head_lr;
  for (const Var& p : model.parameters())
    (p.shape().rank() == 1 && !o.decay_norm ? norms : weights).params.push_back(p);
  const auto last =
      std::find_if(weights.params.rbegin(), weights.params.rend(), [](const Var& p) { return p.shape().rank() > 1; });
  if (o.head_lr != 1 && last != weights.params.rend()) {
    head.params.push_back(*last);
    weights.params.erase(std::next(last).base());
  }
  std::vector<optim::ParamGroup<optim::SgdOptions>> groups{weights, norms, head};
  std::erase_if(groups, [](const auto& group) { return group.params.empty(); });
  return groups;
}

int64_t total_steps(const TrainOptions& o, int64_t steps_per_epoch) {
  const int64_t epochs_needed = o.iterations / steps_per_epoch + 1;
  return o.iterations > 0 && o.epochs >= epochs_needed ? o.iterations : o.epochs * steps_per_epoch;
}

namespace {
// logits_of(x, y) for each batch of the loader, in evaluation mode.
template <class F>
Evaluation evaluate_by(Module& model, data::Loader& loader, const std::function<bool()>& stop, F&& logits_of) {
  const bool was_training = model.training();
  const no_grad guard;
  model.eval();
  Evaluation sum;
  StepLog log(loader.options().device);  // on CUDA the batches are queued without a wait
  const auto add_up = [&] {
    for (const StepEntry& e : log.read()) {
      sum.loss += static_cast<double>(e.images) * e.loss;
      sum.accuracy += static_cast<double>(e.correct);
      sum.images += e.images;
    }
  };
  int64_t batches = 0;
  for (const auto& [x, y] : loader) {
    const Var logits = logits_of(x);
    log.record(cross_entropy(logits, y).value(), logits.value(), y);
    if (++batches % StepLog::kSlots == 0) add_up();
    if (stop && stop()) break;
  }
  add_up();
  model.train(was_training);
  if (sum.images > 0) {
    sum.loss /= static_cast<double>(sum.images);
    sum.accuracy /= static_cast<double>(sum.images);
  }
  sum.cut_short = sum.images < loader.dataset().size();
  return sum;
}
}  // namespace

Evaluation evaluate(Module& model, data::Loader& loader, const std::function<bool()>& stop) {
  return evaluate_by(model, loader, stop, [&](const Tensor& x) { return model(x); });
}

Evaluation evaluate_mirrored(Module& model, data::Loader& loader, const std::function<bool()>& stop) {
  data::Loader mirrored(loader.dataset().mirrored(), loader.options());
  auto other = mirrored.begin();
  return evaluate_by(model, loader, stop, [&](const Tensor& x) {
    const Var sum = model(x) + model((*other).x);
    ++other;
    return sum * 0.5;
  });
}

Evaluator::Evaluator(const TrainOptions& options, const DataSets& sets, Reporter& report, std::function<bool()> stop)
    : report_(report), tta_(options.tta), stop_(std::move(stop)), test_(sets.test, test_loader_options(options)) {
  if (sets.validation.size() > 0) validation_.emplace(sets.validation, test_loader_options(options));
}

void Evaluator::operator()(Module& model, Module* average, bool last) {
  report_.pause();
  evaluate_one(model, "", last);
  if (average) evaluate_one(*average, "_ema", last);
}

void Evaluator::evaluate_one(Module& model, const std::string& suffix, bool last) {
  if (validation_) report_.evaluation(evaluate(model, *validation_, stop_), "validation" + suffix);
  if (last || !validation_) report_.evaluation(evaluate(model, test_, stop_), "test" + suffix);
  if (last && tta_) report_.evaluation(evaluate_mirrored(model, test_, stop_), "test" + suffix + "_tta");
}

}  // namespace ht::models
