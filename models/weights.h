// Weights that travel: safetensors files of PyTorch's VGG networks, and Halftone's checkpoints, into a module.
#pragma once

#include <string>
#include <vector>

#include "models/sequential.h"

namespace ht::models {

// The tensors of a file under the names that `model` has for them:
//   - a wrapper's prefix goes: "module." (DataParallel), "_orig_mod." (torch.compile), "model.", "net.";
//   - a head of one Linear may be "classifier.weight" on one side and "classifier.0.weight" on the other;
//   - a checkpoint's "optimizer.*", "amp.*" and "ema.*" are left out;
//   - a batch norm's num_batches_tracked, which old files lack, stays the model's.
StateDict adapt_names(const StateDict& file, const Module& model);

// Loads a file's weights, or with `ema` a checkpoint's averaged ones; floating types are converted. Throws Error naming
// the file when it breaks the format, has no averaged weights, and, with lists of missing, unexpected and mismatched
// names, when it is of another network; then nothing was loaded.
void load_weights(Module& model, const std::string& path, bool ema = false);

struct NetworkOptions {
  bool ema = false;
  double width = 0;  // of the network, where the file does not tell; 0: its channels decide
};
struct LoadedNetwork {
  nn::Sequential model;
  std::string name;                      // "vgg16 width 0.125"
  int64_t classes = 0, image = 0;        // image: side of the input
  std::vector<std::string> class_names;  // of a checkpoint; empty: not told
};
// Builds the network that a file is of, by its tensors' names and shapes, and loads it: vgg16 from a checkpoint, or one
// of the vgg family as PyTorch names it. Throws Error as load_weights does, and when it is neither.
LoadedNetwork load_network(const std::string& path, const NetworkOptions& options = {});

}  // namespace ht::models
