// Batch norms that vanish for inference.
#pragma once

#include "models/sequential.h"

namespace ht::nn {

// Folds each BatchNorm2d that directly follows a Conv2d into that convolution (Conv2d::fold) and takes it out, in
// nested Sequentials, too: conv, norm, relu becomes conv, relu, which gives what the network gave in evaluation mode.
// Layers keep their names.
void fold_batch_norm_(Sequential& net);

}  // namespace ht::nn
