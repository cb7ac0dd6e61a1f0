// Where the time of VGG16's training step goes: every op, forward and backward, with the kernels that it queued, timed
// by CUPTI (CUDA's tracing library) in steps that run as they are on one stream, and beside them the whole step as one
// graph on two, without a profiler. The limit of an op is the larger of its bytes over the memory's rate and its
// products over the rate of a large matrix product, both measured here.
//   bench_profile_step [--method amp] [--batch 512] [--steps 5] [--bare] [--linear] [--kernels] [--timeline]
#include <cuda_runtime.h>
#include <cupti.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <unordered_map>

#include "bench/linear_step.h"
#include "bench/timing.h"
#include "bench/vgg16_step.h"
#include "core/cuda_context.h"

namespace {

void cupti_check(CUptiResult result, const char* call) {
  if (result == CUPTI_SUCCESS) return;
  const char* text = "unknown";
  cuptiGetResultString(result, &text);
  ht::fail("profile: ", call, ": ", text, "; tracing may be reserved to the administrator on this machine");
}
#define CUPTI(call) cupti_check(call, #call)

// One range of the host: an op's forward, say. `us` is the device's time of what it queued, not of ranges inside it.
struct Entry {
  std::string name, phase;
  int parent = -1, forward = -1;  // entries; forward: of a backward
  double bytes = 0, flop = 0;
  std::vector<ht::Shape> shapes;
  std::vector<double> us;
  std::vector<std::string> kernels;  // of the last step
};

// Numbers the ranges of a step in their order; the same work gives the same numbers each step.
class Recorder final : public ht::RangeObserver {
 public:
  std::vector<Entry> entries;

  void start() {
    next_ = 0;
    open_.clear();
    forwards_.clear();
  }
  void begin(std::string_view name, std::string_view phase, const void* id) override {
    const int index = next_++;
    if (index == static_cast<int>(entries.size())) {
      entries.push_back(
          {std::string(name), std::string(phase), open_.empty() ? -1 : open_.back(), -1, 0, 0, {}, {}, {}});
      if (phase == "backward" && forwards_.contains(id)) entries.back().forward = forwards_[id];
    }
    if (phase == "forward") forwards_[id] = index;
    entries[static_cast<size_t>(index)].kernels.clear();
    entries[static_cast<size_t>(index)].us.push_back(0);
    open_.push_back(index);
    CUPTI(cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0,
                                                 static_cast<uint64_t>(index) + 1));
  }
  void touches(std::span<const ht::Tensor> tensors) override {
    Entry& e = entries[static_cast<size_t>(open_.back())];
    if (e.us.size() > 1) return;
    for (const ht::Tensor& t : tensors) {
      if (!t.defined()) continue;
      e.bytes += static_cast<double>(t.numel()) * static_cast<double>(ht::size_of(t.dtype()));
      e.shapes.push_back(t.shape());
    }
  }
  void end() override {
    uint64_t id = 0;
    CUPTI(cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &id));
    open_.pop_back();
  }

 private:
  int next_ = 0;
  std::vector<int> open_;
  std::map<const void*, int> forwards_;
};

// What CUPTI delivers of one step.
struct Trace {
  struct Work {
    std::string kernel;
    uint64_t start, end;  // ns
    uint32_t correlation, stream;
  };
  std::vector<Work> works;
  std::unordered_map<uint32_t, uint64_t> ranges;  // correlation -> range + 1; the innermost came last

  static Trace& current() {
    static Trace trace;
    return trace;
  }
};

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* most) {
  *size = 8 << 20;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, *size));
  *most = 0;
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  Trace& trace = Trace::current();
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    const auto add = [&](const auto& r, const char* name) {
      trace.works.push_back({name, r.start, r.end, r.correlationId, r.streamId});
    };
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto* k = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      add(*k, k->name);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto* m = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      add(*m, "copy");
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      const auto* m = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      add(*m, "memset");
    } else if (record->kind == CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION) {
      const auto* e = reinterpret_cast<const CUpti_ActivityExternalCorrelation*>(record);
      trace.ranges[e->correlationId] = e->externalId;
    }
  }
  std::free(buffer);
}

// What CUPTI traced since the last call, by its start.
std::vector<Trace::Work> take_works() {
  CUPTI(cuptiActivityFlushAll(1));
  std::vector<Trace::Work> works = std::exchange(Trace::current().works, {});
  std::sort(works.begin(), works.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
  return works;
}

constexpr CUpti_ActivityKind kWork[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                        CUPTI_ACTIVITY_KIND_MEMSET};
constexpr CUpti_ActivityKind kCalls[] = {CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER,
                                         CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION};

void start_tracing(std::span<const CUpti_ActivityKind> kinds) {
  CUPTI(cuptiActivityRegisterCallbacks(give_buffer, take_buffer));
  for (const CUpti_ActivityKind kind : kinds) CUPTI(cuptiActivityEnable(kind));
}

// Two runs of the step as one graph, kernel by kernel: when it starts, how long it takes, on which stream, and how long
// nothing had run before. Tracing holds each kernel up a little.
template <class Step>
void print_timeline(Step& step, ht::Context& context) {
  start_tracing(kWork);
  for (int i = 0; i < 2; ++i) step();
  context.synchronize();
  const std::vector<Trace::Work> works = take_works();
  for (const CUpti_ActivityKind kind : kWork) CUPTI(cuptiActivityDisable(kind));
  std::printf("%9s %8s %8s %7s  %s\n", "start us", "us", "idle us", "stream", "kernel");
  uint64_t until = works.empty() ? 0 : works[0].start;
  double idle = 0;
  for (const Trace::Work& w : works) {
    const double gap = w.start > until ? static_cast<double>(w.start - until) / 1000 : 0;
    idle += gap;
    std::printf("%9.2f %8.2f %8.2f %7u  %.110s\n", static_cast<double>(w.start - works[0].start) / 1000,
                static_cast<double>(w.end - w.start) / 1000, gap, w.stream, w.kernel.c_str());
    until = std::max(until, w.end);
  }
  std::printf("%.1f us with nothing running, in two steps of %zu kernels and copies\n\n", idle, works.size());
}

// Gives each range its own work; `outside` collects what no range had queued. A kernel that starts while the one before
// it still runs (programmatic launch) waits for that one: its time counts from there.
void settle(Recorder& recorder, Entry& outside) {
  const std::vector<Trace::Work> works = take_works();
  const auto ranges = std::exchange(Trace::current().ranges, {});
  outside.us.push_back(0);
  outside.kernels.clear();
  uint64_t until = 0;
  for (const Trace::Work& work : works) {
    const auto it = ranges.find(work.correlation);
    Entry& e = it == ranges.end() ? outside : recorder.entries[it->second - 1];
    const uint64_t from = std::max(work.start, until);
    const double us = work.end > from ? static_cast<double>(work.end - from) / 1000 : 0;
    until = std::max(until, work.end);
    e.us.back() += us;
    e.kernels.push_back(ht::str(us, " ", work.kernel));
  }
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Products of an op's forward: shapes are x, weight, ..., y.
double forward_flop(const Entry& e) {
  if (e.name != "conv2d" && e.name != "linear") return 0;
  const ht::Shape &w = e.shapes[1], &y = e.shapes.back();
  return 2.0 * static_cast<double>(y.numel()) * static_cast<double>(w.numel()) / static_cast<double>(w[0]);
}

// Bytes and products of backward follow from the forward's tensors: it reads those, and dy, and writes gradients.
void count_work(std::vector<Entry>& entries) {
  std::vector<bool> has_parts(entries.size());
  for (const Entry& e : entries)
    if (e.parent >= 0) has_parts[static_cast<size_t>(e.parent)] = true;
  for (size_t i = 0; i < entries.size(); ++i) {
    Entry& e = entries[i];
    if (e.phase == "forward") e.flop = forward_flop(e);
    if (e.forward >= 0) {
      const Entry& f = entries[static_cast<size_t>(e.forward)];
      if (f.flop > 0) {  // shapes: dy, dx where it is wanted, dw
        e.flop = f.flop * static_cast<double>(std::min<size_t>(e.shapes.size() - 1, 2));
        e.bytes += f.bytes - 2.0 * static_cast<double>(f.shapes.back().numel());
      } else if (!f.shapes.empty() && f.name == "batch_norm") {  // x again
        e.bytes += static_cast<double>(f.shapes[0].numel()) * f.bytes /
                   static_cast<double>(f.shapes[0].numel() + f.shapes.back().numel());
      }
    }
    if (has_parts[i]) e.bytes = e.flop = 0;  // its parts have them
  }
}

double gemm_rate(ht::DType dtype) {
  const ht::no_grad guard;
  const int64_t n = 8192;
  const ht::Var x = ht::Tensor::uniform({n, n}, {7, 1}, -1, 1).to(ht::Device::cuda()).to(dtype);
  ht::Context& context = ht::Context::of(ht::Device::cuda());
  ht::matmul(x, x);
  const auto ms = bench::window_ms(
      5, 5, [&] { ht::matmul(x, x); }, [&] { context.synchronize(); });
  return 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) / (ms[2] * 1e-3);
}

double copy_rate() {
  ht::Context& context = ht::Context::of(ht::Device::cuda());
  const ht::Tensor a = ht::Tensor::zeros({int64_t{1} << 28}, ht::DType::f32, ht::Device::cuda());
  const ht::Tensor b = ht::Tensor::zeros(a.shape(), ht::DType::f32, ht::Device::cuda());
  const auto ms = bench::window_ms(
      5, 5, [&] { b.copy_(a); }, [&] { context.synchronize(); });
  return 2.0 * 4.0 * static_cast<double>(a.numel()) / (ms[2] * 1e-3);
}

void print_table(const std::vector<Entry>& entries, double bandwidth, double rate, bool kernels, double graph_ms) {
  std::printf("%9s %9s %9s %9s %9s  %s\n", "us", "GB/s", "TFLOP/s", "limit us", "of limit", "op");
  double sum = 0, limits = 0;
  std::map<std::string, double> by_kind;
  for (const Entry& e : entries) {
    const double us = median(e.us);
    sum += us;
    by_kind[e.name + " " + e.phase] += us;
    if (us == 0) continue;
    const double by_bytes = e.bytes / bandwidth * 1e6, by_flop = e.flop / rate * 1e6;
    const double limit = std::max(by_bytes, by_flop);
    limits += limit;
    std::printf("%9.2f %9.0f %9.1f %9.2f %8.0f%%  %s %s", us, e.bytes / us * 1e-3, e.flop / us * 1e-6, limit,
                100 * limit / us, e.name.c_str(), e.phase.c_str());
    if (!e.shapes.empty()) std::printf(" %s", ht::str(e.shapes[0]).c_str());
    std::printf("%s\n", limit == 0 ? "" : by_flop > by_bytes ? " (matrix rate)" : " (bandwidth)");
    if (kernels)
      for (const std::string& k : e.kernels) std::printf("%12s%.150s\n", "", k.c_str());
  }
  std::printf("\n%9.1f us: sum; %.1f us: sum of the limits; %.1f us: the whole step as one graph\n", sum, limits,
              1000 * graph_ms);
  std::vector<std::pair<double, std::string>> kinds;
  for (const auto& [kind, us] : by_kind) kinds.emplace_back(us, kind);
  std::sort(kinds.rbegin(), kinds.rend());
  for (const auto& [us, kind] : kinds)
    if (us > 0) std::printf("%9.1f us %5.1f%%  %s\n", us, 100 * us / sum, kind.c_str());
}

struct What {
  int steps;
  bool kernels, timeline;
};

// `make(eager)` makes the step.
template <class Make>
void profile(const std::string& method, const std::string& title, Make&& make, const What& what) {
  ht::Context& context = ht::Context::of(ht::Device::cuda());
  bench::use_method(method);
  const double rate = gemm_rate(bench::dtype_of(method)), bandwidth = copy_rate();
  std::printf("%s, %s, %s: %.0f TFLOP/s, %.2f TB/s\n", method.c_str(), title.c_str(), context.cuda().gpu_name.c_str(),
              rate * 1e-12, bandwidth * 1e-12);
  ht::empty_cache(ht::Device::cuda());
  double graph_ms = 0;
  {
    auto step = make(false);
    for (int i = 0; i < 10; ++i) (*step)();
    context.synchronize();
    graph_ms = bench::window_ms(7, 20, *step, [&] { context.synchronize(); })[3];
    if (what.timeline) print_timeline(*step, context);
  }
  context.cuda().overlap = false;
  const auto step = make(true);
  for (int i = 0; i < 5; ++i) (*step)();
  context.synchronize();

  start_tracing(kWork);
  start_tracing(kCalls);
  Recorder recorder;
  Entry outside{"outside of all ranges", "", -1, -1, 0, 0, {}, {}, {}};
  for (int i = 0; i < what.steps; ++i) {
    recorder.start();
    ht::RangeObserver* before = ht::set_range_observer(&recorder);
    (*step)();
    ht::set_range_observer(before);
    context.synchronize();
    settle(recorder, outside);
  }
  count_work(recorder.entries);
  recorder.entries.push_back(outside);
  print_table(recorder.entries, bandwidth, rate, what.kernels, graph_ms);
}
}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times every op of a training step on the GPU: VGG16's or, with --linear, the smallest one");
  std::string method = "amp";
  int64_t batch = 512;
  What what{5, false, false};
  bool bare = false, linear = false;
  app.add_option("--method", method)->check(CLI::IsMember(bench::kMethods));
  app.add_option("--batch", batch)->check(CLI::PositiveNumber);
  app.add_option("--steps", what.steps)->check(CLI::PositiveNumber);
  app.add_flag("--bare", bare, "a fixed batch, plain SGD");
  app.add_flag("--linear", linear, "bench/linear_step.h's in place of VGG16's");
  app.add_flag("--kernels", what.kernels, "also each kernel's time and name");
  app.add_flag("--timeline", what.timeline, "also each kernel of the graph, as it lies on its stream");
  CLI11_PARSE(app, argc, argv);
  if (ht::cuda_device_count() == 0) {
    std::puts("SKIPPED: no CUDA device");
    return 0;
  }
  return ht::models::run_program("bench_profile_step", [&] {
    if (linear) {
      const auto make = [&](bool eager) {
        return std::make_unique<bench::LinearStep>(method, ht::Device::cuda(), eager);
      };
      profile(method, "linear step", make, what);
    } else {
      const auto make = [&](bool eager) { return std::make_unique<bench::Vgg16Step>(method, batch, !bare, eager); };
      profile(method, ht::str("batch ", batch, ", ", bare ? "bare" : "whole", " step"), make, what);
    }
    return 0;
  });
}
