#include "core/cuda_graph.h"

#include "core/cuda_check.h"
#include "core/cuda_context.h"
#include "core/graph_memsets.h"

namespace ht {

struct CudaGraph {
  cudaGraphExec_t exec = nullptr;
  ~CudaGraph() {
    if (exec) cudaGraphExecDestroy(exec);
  }
};

std::shared_ptr<CudaGraph> record_cuda_graph(CudaContext& cuda, const std::function<void()>& work) {
  HT_CUDA_CALL(cudaStreamBeginCapture(cuda.stream(), cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    work();
    cuda.join();  // the side lane's work must end in the graph
  } catch (...) {
    cudaStreamEndCapture(cuda.stream(), &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
    throw;
  }
  HT_CUDA_CALL(cudaStreamEndCapture(cuda.stream(), &graph));
  const std::unique_ptr<CUgraph_st, cudaError_t (*)(cudaGraph_t)> owner(graph, cudaGraphDestroy);
  merge_memsets(graph);
  auto recorded = std::make_shared<CudaGraph>();
  HT_CUDA_CALL(cudaGraphInstantiate(&recorded->exec, graph, 0));
  HT_CUDA_CALL(cudaGraphUpload(recorded->exec, cuda.stream()));
  return recorded;
}

void launch_cuda_graph(CudaContext& cuda, const CudaGraph& graph, uint64_t draws) {
  if (draws) cuda.rng_base.fill_(static_cast<double>(draws));
  HT_CUDA_CALL(cudaGraphLaunch(graph.exec, cuda.stream()));
  if (draws) cuda.rng_base.zero_();
}

}  // namespace ht
