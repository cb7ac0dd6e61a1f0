#include "core/captured_step.h"

#include <algorithm>
#include <optional>

#include "core/build.h"
#include "core/caching_allocator.h"
#include "core/context.h"
#include "core/cuda_graph.h"

namespace ht {

namespace {
using Log = std::vector<std::function<void()>>;
thread_local Log* current_log = nullptr;

// While alive, this thread records: its allocations come from the pool, its bookkeeping goes into the log.
class RecordingScope {
 public:
  RecordingScope(CachingAllocator& allocator, int pool, Log& log) : allocator_(allocator) {
    allocator_.enter_pool(pool);
    current_log = &log;
  }
  ~RecordingScope() {
    current_log = nullptr;
    allocator_.leave_pool();
  }

 private:
  CachingAllocator& allocator_;
};
}  // namespace

void on_replay(std::function<void()> again) {
  if (current_log) current_log->push_back(std::move(again));
}
bool is_recording() { return current_log != nullptr; }

struct CapturedStep::Recording {
  std::vector<Tensor> inputs;
  int calls = 0;
  std::shared_ptr<CudaGraph> graph;
  Log log;
  uint64_t first_draw = 0, draws = 0;  // of the generator, while recording

  bool fits(std::span<const Tensor> in) const {
    return std::equal(in.begin(), in.end(), inputs.begin(), inputs.end(), [](const Tensor& a, const Tensor& b) {
      return a.shape() == b.shape() && a.dtype() == b.dtype();
    });
  }
};

CapturedStep::CapturedStep(Device device, Step step, int warm_up)
    : device_(device), step_(std::move(step)), warm_up_(warm_up) {
  check(step_ != nullptr, "captured step: there is no step");
  check(warm_up >= 1, "captured step: warm_up is ", warm_up, " but must be at least 1");
}

CapturedStep::~CapturedStep() { reset(); }

void CapturedStep::reset() {
  recordings_.clear();
  if constexpr (kCudaBuild) {
    if (pool_) cuda_allocator(device_.index).retire_pool(pool_);
  }
  pool_ = 0;
}

CapturedStep::Recording& CapturedStep::recording_of(std::span<const Tensor> inputs) {
  for (const auto& r : recordings_)
    if (r->fits(inputs)) return *r;
  auto r = std::make_unique<Recording>();
  for (const Tensor& t : inputs) r->inputs.push_back(Tensor::empty(t.spec(), device_));
  recordings_.push_back(std::move(r));
  return *recordings_.back();
}

void CapturedStep::operator()(std::span<const Tensor> inputs) {
  Recording& r = recording_of(inputs);
  for (size_t i = 0; i < inputs.size(); ++i)
    if (!inputs[i].same_storage(r.inputs[i])) r.inputs[i].copy_(inputs[i]);
  replayed_ = false;
  if (!device_.is_cuda() || r.calls < warm_up_) {
    step_(r.inputs);
    ++r.calls;
    return;
  }
  if (!r.graph) record(r);
  replay(r);
  replayed_ = true;
}

void CapturedStep::record(Recording& r) {
  if constexpr (kCudaBuild) {
    Context& ctx = Context::of(device_);
    CachingAllocator& allocator = cuda_allocator(device_.index);
    if (!pool_) pool_ = allocator.new_pool();
    ctx.synchronize();
    allocator.empty_cache();  // the recording takes memory of its own
    r.log.clear();
    r.first_draw = ctx.generator().position();
    try {
      const RecordingScope scope(allocator, pool_, r.log);
      r.graph = record_cuda_graph(ctx.cuda(), [&] { step_(r.inputs); });
    } catch (const Error& e) {
      throw Error(str("captured step: while recording: ", e.what(),
                      "; a step may not read values back or wait for the device, and all it needs must be made in "
                      "its ",
                      warm_up_, " calls before"));
    }
    r.draws = ctx.generator().position() - r.first_draw;
    ctx.generator().set_position(r.first_draw);
  }
}

void CapturedStep::replay(Recording& r) {
  if constexpr (kCudaBuild) {
    Context& ctx = Context::of(device_);
    const uint64_t position = ctx.generator().position();
    launch_cuda_graph(ctx.cuda(), *r.graph, r.draws ? position - r.first_draw : 0);
    for (const auto& again : r.log) again();
    ctx.generator().set_position(position + r.draws);
  }
}

}  // namespace ht
