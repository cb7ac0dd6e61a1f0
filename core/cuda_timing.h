// Time of work on the device, for the tuners.
#pragma once

#include <functional>

#include "core/cuda_context.h"

namespace ht {

// Microseconds of one call of `work`, which queues on the main lane. Short work is timed in a captured graph of up to
// ten calls, so that the host's launch cost does not count; work of a millisecond or more, or clearly slower than
// `best_us` (0: none yet), by a single call. Work that cannot be captured is timed as it is.
float time_on_device(CudaContext& cuda, const std::function<void()>& work, float best_us = 0);

}  // namespace ht
