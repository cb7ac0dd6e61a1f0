// Time of work on the device, for the tuners.
#pragma once

#include <functional>

#include "core/cuda_context.h"

namespace ht {

// Microseconds of one call of `work`, which queues on the main lane: from a captured graph of ten calls, replayed and
// timed by events, so that the host's launch cost does not count. Work that cannot be captured is timed as it is.
float time_on_device(CudaContext& cuda, const std::function<void()>& work);

}  // namespace ht
