#include "models/trainer.h"

#include <algorithm>

#include "data/cifar10.h"
#include "data/synthetic.h"
#include "ops/ops.h"

namespace ht::models {

data::TrainTest load_data(const TrainOptions& o) {
  data::TrainTest sets = o.data.empty() ? data::make_synthetic() : data::read_cifar10(o.data);
  if (o.limit > 0) sets.train = sets.train.limit(o.limit);
  check(o.batch_size <= sets.train.size(), "--batch-size: ", o.batch_size, " is larger than the training set of ",
        sets.train.size(), " images");
  return sets;
}

data::LoaderOptions train_loader_options(const TrainOptions& o) {
  const bool crop = o.augment == Augment::crop || o.augment == Augment::full;
  data::AugmentOptions augment{.flip = o.augment == Augment::none ? data::Flip::none : data::Flip::random,
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

int64_t total_steps(const TrainOptions& o, int64_t steps_per_epoch) {
  const int64_t epochs_needed = o.iterations / steps_per_epoch + 1;
  return o.iterations > 0 && o.epochs >= epochs_needed ? o.iterations : o.epochs * steps_per_epoch;
}

Evaluation evaluate(Module& model, data::Loader& loader, const std::function<bool()>& stop) {
  const bool was_training = model.training();
  const no_grad guard;
  model.eval();
  Evaluation sum;
  for (const auto& [x, y] : loader) {
    const Var logits = model(x);
    const double n = static_cast<double>(x.dim(0));
    sum.loss += n * cross_entropy(logits, y).item();
    sum.accuracy += static_cast<double>(count_correct(logits.value(), y));
    sum.images += x.dim(0);
    if (stop && stop()) break;
  }
  model.train(was_training);
  if (sum.images > 0) {
    sum.loss /= static_cast<double>(sum.images);
    sum.accuracy /= static_cast<double>(sum.images);
  }
  return sum;
}

}  // namespace ht::models
