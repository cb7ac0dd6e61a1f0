// Checked cuDNN calls; for .cpp files of CUDA builds only.
#pragma once

#include <cudnn.h>

#include "core/error.h"

namespace ht {

// Throws Error "<call>: <status> (<cuDNN's own last message>)" unless the call succeeded.
inline void cudnn_check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) [[likely]]
    return;
  char message[512] = "";
  cudnnGetLastErrorString(message, sizeof(message));
  fail(call, ": ", cudnnGetErrorString(status), " (", message, ")");
}

}  // namespace ht
