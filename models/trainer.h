// The parts of a training run around the loop itself, which stands in models/train_vgg16.cpp.
#pragma once

#include <functional>

#include "autograd/module.h"
#include "data/loader.h"
#include "models/options.h"
#include "models/report.h"

namespace ht::models {

// CIFAR-10's files from options.data, or the generated set; at most options.limit training images.
data::TrainTest load_data(const TrainOptions& options);

data::LoaderOptions train_loader_options(const TrainOptions& options);
data::LoaderOptions test_loader_options(const TrainOptions& options);

// Steps of the whole run: epochs * steps_per_epoch, at most options.iterations when that is set.
int64_t total_steps(const TrainOptions& options, int64_t steps_per_epoch);

// Mean loss and accuracy in evaluation mode, recording nothing; the model's mode is restored. Ends early, with what it
// has seen, once `stop` holds.
Evaluation evaluate(Module& model, data::Loader& loader, const std::function<bool()>& stop = {});

}  // namespace ht::models
