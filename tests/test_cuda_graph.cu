// What a recorded step does with the memsets of a library.
#include <doctest/doctest.h>

#include "core/cuda_check.h"
#include "core/cuda_graph.h"
#include "core/graph_memsets.h"
#include "tests/cuda_test.h"

using namespace ht;

namespace {
// A graph of what `work` queues on the main stream, and the nodes that it has left after merge_memsets.
template <class F>
size_t nodes_after_merging(CudaContext& cuda, F&& work) {
  HT_CUDA_CALL(cudaStreamBeginCapture(cuda.stream(), cudaStreamCaptureModeThreadLocal));
  work();
  cudaGraph_t graph = nullptr;
  HT_CUDA_CALL(cudaStreamEndCapture(cuda.stream(), &graph));
  merge_memsets(graph);
  size_t n = 0;
  HT_CUDA_CALL(cudaGraphGetNodes(graph, nullptr, &n));
  HT_CUDA_CALL(cudaGraphDestroy(graph));
  return n;
}
}  // namespace

TEST_CASE("cuda graph: chains of memsets become one kernel, which clears the same bytes and no others") {
  HT_NEEDS_CUDA();
  const Device device = Device::cuda();
  CudaContext& cuda = Context::of(device).cuda();
  const Tensor bytes = Tensor::empty({100'000}, DType::u8, device), copy = Tensor::empty({100'000}, DType::u8, device);
  uint8_t* at = bytes.data<uint8_t>();
  const auto clear = [&](size_t from, size_t n, int value = 0) {
    HT_CUDA_CALL(cudaMemsetAsync(at + from, value, n, cuda.stream()));
  };
  const auto keep = [&] {  // stands between the chains
    HT_CUDA_CALL(cudaMemcpyAsync(copy.data(), at, 100'000, cudaMemcpyDeviceToDevice, cuda.stream()));
  };
  const auto work = [&] {
    clear(0, 256), clear(512, 4096), clear(8192 + 3, 17);  // whole and odd
    keep();
    clear(16384, 1);
    clear(16400, 16, 5);  // not to zero
    clear(16390, 2), clear(20000, 1000), clear(30000, 70'000 - 7'000), clear(99'000, 999), clear(29'000, 1);
  };
  bytes.fill_(7);
  launch_cuda_graph(cuda, *record_cuda_graph(cuda, work), 0);
  const std::vector<double> merged = bytes.to_vector(), kept = copy.to_vector();
  bytes.fill_(7);
  work();
  CHECK(merged == bytes.to_vector());
  CHECK(kept == copy.to_vector());
  // 3 -> 1, the copy, a single one, the one to 5, and 5 -> 4 in a kernel and one for itself.
  CHECK(nodes_after_merging(cuda, work) == 6);
  CHECK(nodes_after_merging(cuda, [&] { clear(0, 1), clear(1, 80'000), clear(2, 1); }) == 3);  // a large one stays
}
