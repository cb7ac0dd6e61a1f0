// The parts of a training run around the loop itself, which stands in models/train_vgg16.cpp.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "autograd/module.h"
#include "data/loader.h"
#include "models/options.h"
#include "models/report.h"
#include "optim/sgd.h"

namespace ht::models {

struct DataSets {
  data::ImageDataset train, test;
  data::ImageDataset validation;  // empty without --val-size
};
// CIFAR-10's files from options.data, or the generated set; at most options.limit training images, of which val_size,
// drawn by the seed, become the validation set.
DataSets load_data(const TrainOptions& options);

data::LoaderOptions train_loader_options(const TrainOptions& options);
data::LoaderOptions test_loader_options(const TrainOptions& options);

// Draws the first weights anew; Init::uniform: leaves those that the layers drew.
void initialise(const Module& model, Init init);

// The optimizer's groups: weights; without decay_norm the parameters of rank 1, which are those of norms and the
// biases; with a head_lr the last weight.
std::vector<optim::ParamGroup<optim::SgdOptions>> parameter_groups(const Module& model, const TrainOptions& options);

// Steps of the whole run: epochs * steps_per_epoch, at most options.iterations when that is set.
int64_t total_steps(const TrainOptions& options, int64_t steps_per_epoch);

// Mean loss and accuracy in evaluation mode, recording nothing; the model's mode is restored. Ends early, with what it
// has seen, once `stop` holds.
Evaluation evaluate(Module& model, data::Loader& loader, const std::function<bool()>& stop = {});
// The same by the mean logits of each image and its mirror image (test-time augmentation). `loader` must not shuffle.
Evaluation evaluate_mirrored(Module& model, data::Loader& loader, const std::function<bool()>& stop = {});

// What a run looks at between epochs: the validation set where there is one, and the test set then only at the end.
class Evaluator {
 public:
  Evaluator(const TrainOptions& options, const DataSets& sets, Reporter& report, std::function<bool()> stop);
  // Of the model and, beside it, of `average` unless that is null; by --tta also with mirror images when `last`.
  void operator()(Module& model, Module* average, bool last);

 private:
  void evaluate_one(Module& model, const std::string& suffix, bool last);
  Reporter& report_;
  bool tta_;
  std::function<bool()> stop_;
  data::Loader test_;
  std::optional<data::Loader> validation_;
};

}  // namespace ht::models
