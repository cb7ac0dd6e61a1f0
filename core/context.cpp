#include "core/context.h"

#include <atomic>
#include <charconv>
#include <ostream>
#include <thread>
#include <vector>

#include "core/build.h"
#include "core/cuda_context.h"
#include "core/error.h"
#include "core/parallel.h"

namespace ht {

namespace {
std::atomic<bool> deterministic_mode{false};
thread_local uint64_t thread_seed = 0;

std::vector<std::unique_ptr<Context>>& cuda_contexts() {
  thread_local std::vector<std::unique_ptr<Context>> contexts;
  return contexts;
}

#if defined(_OPENMP)
std::atomic<int> thread_count{omp_get_max_threads()};
#else
std::atomic<int> thread_count{1};
#endif
}  // namespace

Device Device::parse(std::string_view text) {
  if (text == "cpu") return cpu();
  if (text == "cuda") return cuda(0);
  int index = -1;
  if (text.substr(0, 5) == "cuda:") {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + 5, end, index);
    if (error != std::errc() || stop != end) index = -1;
  }
  check(index >= 0, "device: '", text, "' is unknown; use cpu, cuda or cuda:N");
  return cuda(index);
}

std::ostream& operator<<(std::ostream& out, Device d) { return d.is_cuda() ? out << "cuda:" << d.index : out << "cpu"; }

bool cuda_is_built() { return kCudaBuild; }

#if !defined(HT_CUDA)
int cuda_device_count() { return 0; }
CudaMemory cuda_memory(int) { return {}; }
std::string cuda_versions() { return ""; }
CudaContext::~CudaContext() = default;
#endif

Context::Context(Device device) : device_(device) {
  generator_.manual_seed(thread_seed);
#if defined(HT_CUDA)
  if (device.is_cuda()) cuda_ = make_cuda_context(device.index);
#endif
}

Context::~Context() = default;

Context& Context::of(Device device) {
  if (!device.is_cuda()) {
    thread_local Context cpu(Device::cpu());
    return cpu;
  }
  check(kCudaBuild, "context: ", device, " needs a CUDA build; configure with -DHALFTONE_CUDA=ON");
  auto& contexts = cuda_contexts();
  const size_t i = static_cast<size_t>(device.index);
  if (i >= contexts.size() || !contexts[i]) {
    check(device.index < cuda_device_count(), "context: ", device, " is not there: ", cuda_device_count(),
          " CUDA device(s) found; use --device cpu or a smaller index");
    if (i >= contexts.size()) contexts.resize(i + 1);
    contexts[i] = std::make_unique<Context>(device);
  }
  return *contexts[i];
}

CudaContext& Context::cuda() {
  check(cuda_ != nullptr, "context: ", device_, " has no CUDA state");
  return *cuda_;
}

void Context::join() {
#if defined(HT_CUDA)
  if (cuda_) cuda_->join();
#endif
}

void Context::synchronize() {
#if defined(HT_CUDA)
  if (cuda_) synchronize_cuda(*cuda_);
#endif
}

void manual_seed(uint64_t seed) {
  thread_seed = seed;
  Context::of(Device::cpu()).generator().manual_seed(seed);
  for (auto& context : cuda_contexts())
    if (context) context->generator().manual_seed(seed);
}

void set_deterministic(bool on) { deterministic_mode = on; }
bool deterministic() { return deterministic_mode; }

int num_threads() { return thread_count; }
void set_num_threads(int n) {
  check(n >= 1, "set_num_threads: ", n, " threads; use 1 or more");
  thread_count = n;
}

}  // namespace ht
