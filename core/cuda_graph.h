// Recording of what a thread queues on a device's streams, and its replay.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace ht {

struct CudaContext;
struct CudaGraph;

// Records what `work` queues on the context's lanes instead of running it. Throws Error when `work` does something that
// cannot be recorded; the streams are usable again then.
std::shared_ptr<CudaGraph> record_cuda_graph(CudaContext& cuda, const std::function<void()>& work);
// Queues a run of the graph on the main lane, with its random streams moved on by `draws` (exact below 2^53).
void launch_cuda_graph(CudaContext& cuda, const CudaGraph& graph, uint64_t draws);

}  // namespace ht
