// Classifies images with a trained network: what `predict` and `halftone predict` do (docs/prediction.md).
#pragma once

#include <cstdint>
#include <string>

#include "core/device.h"
#include "data/augment.h"
#include "data/loader.h"
#include "models/sequential.h"

namespace CLI {
class App;
}

namespace ht::models {

struct PredictOptions {
  std::string weights;   // a checkpoint, or a VGG under PyTorch's names
  std::string images;    // what data/pictures.h reads
  bool ema = false;      // a checkpoint's averaged weights
  double width = 0;      // see NetworkOptions
  bool half = false;     // FP16
  int64_t top = 5;       // classes told of each image
  std::string json;      // JSON lines; empty: none
  std::string mistakes;  // SVG of the worst mistakes; empty: none
  int64_t show = 40;     // mistakes in it
  Device device;         // CUDA when there is one
  int threads = 0;       // 0: the machine's cores
  int64_t batch_size = 256;
  data::Normalization normalization = data::Normalization::cifar10();
};

// The command line, for a program or a subcommand.
void add_predict_options(CLI::App& app, PredictOptions& options);

// Loads, folds batch norms, classifies, and tells on stdout and in files. Throws Error naming the file at fault.
void predict(const PredictOptions& options);

// Class probabilities f32 [n, classes] on the CPU, in the loader's order, in evaluation mode. Throws Error when they
// are not finite.
Tensor probabilities(Module& model, data::Loader& loader);

}  // namespace ht::models
