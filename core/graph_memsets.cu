#include <set>
#include <vector>

#include "core/cuda_kernels.cuh"
#include "core/graph_memsets.h"

namespace ht {

namespace {
constexpr int kMost = 4;                      // memsets of a kernel
constexpr size_t kLargest = size_t{1} << 16;  // bytes of one; a larger one is better off with blocks of its own

struct Ranges {
  char* at[kMost];
  int64_t bytes[kMost];
};

// A row of blocks a range.
__global__ void __launch_bounds__(kBlock) zero_kernel(const __grid_constant__ Ranges ranges) {
  char* at = ranges.at[blockIdx.y];
  const int64_t bytes = ranges.bytes[blockIdx.y];
  const int64_t words = reinterpret_cast<uintptr_t>(at) % 16 == 0 ? bytes / 16 : 0;
  HT_GRID_STRIDE(i, words) reinterpret_cast<int4*>(at)[i] = int4{};
  HT_GRID_STRIDE(j, bytes - words * 16) at[words * 16 + j] = 0;
}

// The nodes that get(array or null, count) tells of.
template <class Get>
std::vector<cudaGraphNode_t> nodes_of(Get&& get) {
  size_t n = 0;
  HT_CUDA_CALL(get(nullptr, &n));
  std::vector<cudaGraphNode_t> nodes(n);
  if (n) HT_CUDA_CALL(get(nodes.data(), &n));
  return nodes;
}

#if CUDART_VERSION >= 13000
#define HT_NO_EDGE_DATA nullptr,
#else
#define HT_NO_EDGE_DATA
#endif
std::vector<cudaGraphNode_t> before(cudaGraphNode_t node) {
  return nodes_of(
      [=](cudaGraphNode_t* to, size_t* n) { return cudaGraphNodeGetDependencies(node, to, HT_NO_EDGE_DATA n); });
}
std::vector<cudaGraphNode_t> after(cudaGraphNode_t node) {
  return nodes_of(
      [=](cudaGraphNode_t* to, size_t* n) { return cudaGraphNodeGetDependentNodes(node, to, HT_NO_EDGE_DATA n); });
}
void put_before(cudaGraph_t graph, cudaGraphNode_t first, cudaGraphNode_t second) {
  HT_CUDA_CALL(cudaGraphAddDependencies(graph, &first, &second, HT_NO_EDGE_DATA 1));
}
#undef HT_NO_EDGE_DATA

// The bytes that a node sets to zero, if that is all it does and they are few; else none.
cudaMemsetParams small_memset(cudaGraphNode_t node) {
  cudaGraphNodeType type;
  HT_CUDA_CALL(cudaGraphNodeGetType(node, &type));
  cudaMemsetParams p{};
  if (type == cudaGraphNodeTypeMemset) HT_CUDA_CALL(cudaGraphMemsetNodeGetParams(node, &p));
  const bool few = p.width > 0 && p.width * p.elementSize <= kLargest;
  return few && p.value == 0 && p.height == 1 ? p : cudaMemsetParams{};
}
}  // namespace

void merge_memsets(cudaGraph_t graph) {
  const auto nodes = nodes_of([=](cudaGraphNode_t* to, size_t* n) { return cudaGraphGetNodes(graph, to, n); });
  std::set<cudaGraphNode_t> gone;
  for (const cudaGraphNode_t node : nodes) {
    if (gone.contains(node) || !small_memset(node).dst) continue;
    std::vector<cudaGraphNode_t> chain{node};
    const auto grow = [&](cudaGraphNode_t other, bool forward) {  // where nothing else hangs between the two
      if (chain.size() == kMost || !small_memset(other).dst) return false;
      const cudaGraphNode_t first = forward ? chain.back() : other, second = forward ? other : chain.front();
      if (after(first).size() != 1 || before(second).size() != 1) return false;
      chain.insert(forward ? chain.end() : chain.begin(), other);
      return true;
    };
    for (auto next = after(chain.back()); next.size() == 1 && grow(next[0], true);) next = after(chain.back());
    for (auto last = before(chain.front()); last.size() == 1 && grow(last[0], false);) last = before(chain.front());
    if (chain.size() < 2) continue;
    Ranges ranges{};
    int64_t longest = 0;
    for (size_t i = 0; i < chain.size(); ++i) {
      const cudaMemsetParams p = small_memset(chain[i]);
      ranges.at[i] = static_cast<char*>(p.dst);
      ranges.bytes[i] = static_cast<int64_t>(p.width * p.elementSize);
      longest = std::max(longest, ranges.bytes[i]);
    }
    void* arguments[] = {&ranges};
    cudaKernelNodeParams params{};
    params.func = reinterpret_cast<void*>(zero_kernel);
    params.gridDim =
        dim3(static_cast<unsigned>((longest + 16 * kBlock - 1) / (16 * kBlock)), static_cast<unsigned>(chain.size()));
    params.blockDim = kBlock;
    params.kernelParams = arguments;
    const auto first = before(chain.front()), last = after(chain.back());
    cudaGraphNode_t kernel;
    HT_CUDA_CALL(cudaGraphAddKernelNode(&kernel, graph, first.data(), first.size(), &params));
    for (const cudaGraphNode_t later : last) put_before(graph, kernel, later);
    for (const cudaGraphNode_t old : chain) {
      HT_CUDA_CALL(cudaGraphDestroyNode(old));
      gone.insert(old);
    }
  }
}

}  // namespace ht
