// Weights that travel: safetensors files of PyTorch's VGG networks, and Halftone's checkpoints, into a module.
#pragma once

#include <string>

#include "autograd/module.h"

namespace ht::models {

// The tensors of a file under the names that `model` has for them:
//   - a wrapper's prefix goes: "module." (DataParallel), "_orig_mod." (torch.compile), "model.", "net.";
//   - a head of one Linear may be "classifier.weight" on one side and "classifier.0.weight" on the other;
//   - a checkpoint's "optimizer.*", "amp.*" and "ema.*" are left out;
//   - a batch norm's num_batches_tracked, which old files lack, stays the model's.
StateDict adapt_names(const StateDict& file, const Module& model);

// Loads a file's weights; floating types are converted. Throws Error naming the file when it breaks the format, and,
// with lists of missing, unexpected and mismatched names, when it is of another network; then nothing was loaded.
void load_weights(Module& model, const std::string& path);

}  // namespace ht::models
