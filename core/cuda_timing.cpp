#include "core/cuda_timing.h"

#include <algorithm>
#include <array>

#include "core/cuda_check.h"

namespace ht {

namespace {
struct Events {
  cudaEvent_t begin = nullptr, end = nullptr;
  Events() {
    HT_CUDA_CALL(cudaEventCreate(&begin));
    HT_CUDA_CALL(cudaEventCreate(&end));
  }
  ~Events() {
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
  }
};

struct Graph {
  cudaGraphExec_t exec = nullptr;
  ~Graph() {
    if (exec) cudaGraphExecDestroy(exec);
  }
};

void capture(CudaStream stream, const std::function<void()>& work, int calls, Graph& out) {
  HT_CUDA_CALL(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    for (int i = 0; i < calls; ++i) work();
  } catch (const Error&) {  // leave the stream usable: the caller falls back to plain launches
    cudaStreamEndCapture(stream, &graph);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
    return;
  }
  if (cudaStreamEndCapture(stream, &graph) == cudaSuccess && graph) {
    if (cudaGraphInstantiate(&out.exec, graph, 0) != cudaSuccess) out.exec = nullptr;
    cudaGraphDestroy(graph);
  }
  cudaGetLastError();
}
}  // namespace

float time_on_device(CudaContext& cuda, const std::function<void()>& work) {
  constexpr int kCalls = 10;
  const CudaStream stream = cuda.stream();
  work();  // loads modules, grows the workspace
  Graph graph;
  capture(stream, work, kCalls, graph);
  const auto once = [&] {
    if (graph.exec) {
      HT_CUDA_CALL(cudaGraphLaunch(graph.exec, stream));
    } else {
      for (int i = 0; i < kCalls; ++i) work();
    }
  };
  const Events events;
  std::array<float, 3> ms{};
  once();
  for (float& m : ms) {
    HT_CUDA_CALL(cudaEventRecord(events.begin, stream));
    once();
    HT_CUDA_CALL(cudaEventRecord(events.end, stream));
    HT_CUDA_CALL(cudaEventSynchronize(events.end));
    HT_CUDA_CALL(cudaEventElapsedTime(&m, events.begin, events.end));
  }
  std::sort(ms.begin(), ms.end());
  return ms[1] * 1000.0f / kCalls;
}

}  // namespace ht
