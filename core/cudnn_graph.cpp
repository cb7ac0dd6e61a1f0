#include "core/cudnn_graph.h"

#include <cudnn.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "core/cuda_check.h"
#include "core/cuda_timing.h"
#include "core/plan_cache.h"
#include "core/tuning.h"

namespace ht {

namespace {
std::string last_message() {
  char text[512] = "";
  cudnnGetLastErrorString(text, sizeof(text));
  return text;
}

void dnn_check(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) fail(call, ": ", cudnnGetErrorString(status), " (", last_message(), ")");
}

// Owns one backend descriptor.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    dnn_check(cudnnBackendCreateDescriptor(type, &raw_), "cudnnBackendCreateDescriptor");
  }
  ~Descriptor() {
    if (raw_) cudnnBackendDestroyDescriptor(raw_);
  }
  Descriptor(Descriptor&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  cudnnBackendDescriptor_t raw() const { return raw_; }
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void* data) {
    dnn_check(cudnnBackendSetAttribute(raw_, name, type, count, data), "cudnnBackendSetAttribute");
    return *this;
  }
  Descriptor& set(cudnnBackendAttributeName_t name, int64_t v) { return set(name, CUDNN_TYPE_INT64, 1, &v); }
  Descriptor& set(cudnnBackendAttributeName_t name, bool v) { return set(name, CUDNN_TYPE_BOOLEAN, 1, &v); }
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnDataType_t v) {
    return set(name, CUDNN_TYPE_DATA_TYPE, 1, &v);
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& d) {
    const cudnnBackendDescriptor_t raw = d.raw();
    return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw);
  }
  Descriptor& finalize() {
    dnn_check(cudnnBackendFinalize(raw_), "cudnnBackendFinalize");
    return *this;
  }
  int64_t count(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type) const {
    int64_t n = 0;
    dnn_check(cudnnBackendGetAttribute(raw_, name, type, 0, &n, nullptr), "cudnnBackendGetAttribute");
    return n;
  }
  // Reads up to `room` values; returns how many there were.
  int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t room, void* out) const {
    int64_t n = 0;
    dnn_check(cudnnBackendGetAttribute(raw_, name, type, room, &n, out), "cudnnBackendGetAttribute");
    return n;
  }

 private:
  cudnnBackendDescriptor_t raw_ = nullptr;
};

cudnnDataType_t dnn_type(DType t) {
  switch (t) {
    case DType::f64:
      return CUDNN_DATA_DOUBLE;
    case DType::f32:
      return CUDNN_DATA_FLOAT;
    case DType::f16:
      return CUDNN_DATA_HALF;
    case DType::bf16:
      return CUDNN_DATA_BFLOAT16;
    default:
      fail("cudnn: dtype ", t, " is not floating");
  }
}
}  // namespace

std::string_view name_of(ConvKind kind) {
  constexpr std::string_view names[] = {"conv2d forward", "conv2d data gradient", "conv2d weight gradient"};
  return names[static_cast<int>(kind)];
}

PlanRules current_rules() { return {tf32(), deterministic(), workspace_limit()}; }

struct CudnnGraph::State {
  std::vector<Descriptor> tensors, parts, operations;
  std::vector<int64_t> real_uids;  // in order of addition: the order of execute's pointers
};

CudnnGraph::CudnnGraph() : state_(std::make_unique<State>()) {}
CudnnGraph::~CudnnGraph() = default;
CudnnGraph::CudnnGraph(CudnnGraph&&) noexcept = default;

int CudnnGraph::tensor(const Shape& s, DType dtype, bool is_virtual) {
  const std::array<int64_t, 4> dims = {s[0], s[3], s[1], s[2]};
  const std::array<int64_t, 4> strides = {s[1] * s[2] * s[3], 1, s[2] * s[3], s[3]};
  const int64_t uid = static_cast<int64_t>(state_->tensors.size()) + 1;
  Descriptor d(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  d.set(CUDNN_ATTR_TENSOR_DATA_TYPE, dnn_type(dtype))
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims.data())
      .set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data())
      .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, uid)
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, int64_t{16})
      .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, is_virtual)
      .finalize();
  state_->tensors.push_back(std::move(d));
  if (!is_virtual) state_->real_uids.push_back(uid);
  return static_cast<int>(uid) - 1;
}

void CudnnGraph::convolution(ConvKind kind, int x, int w, int y, const ConvGeometry& g, DType compute) {
  Descriptor conv(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  const int64_t pad[] = {g.padding, g.padding}, stride[] = {g.stride, g.stride}, dilation[] = {g.dilation, g.dilation};
  conv.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, dnn_type(compute))
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode)
      .set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, int64_t{2})
      .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pad)
      .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pad)
      .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, stride)
      .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilation)
      .finalize();

  struct Names {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t alpha, beta, conv, w, x, y;
  };
  static constexpr Names kNames[] = {
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY}};
  const Names& n = kNames[static_cast<int>(kind)];
  const auto at = [&](int i) -> const Descriptor& { return state_->tensors[static_cast<size_t>(i)]; };
  Descriptor op(n.type);
  op.set(n.conv, conv).set(n.x, at(x)).set(n.w, at(w)).set(n.y, at(y));
  if (compute == DType::f64) {
    const double one = 1, zero = 0;
    op.set(n.alpha, CUDNN_TYPE_DOUBLE, 1, &one).set(n.beta, CUDNN_TYPE_DOUBLE, 1, &zero);
  } else {
    const float one = 1, zero = 0;
    op.set(n.alpha, CUDNN_TYPE_FLOAT, 1, &one).set(n.beta, CUDNN_TYPE_FLOAT, 1, &zero);
  }
  op.finalize();
  state_->parts.push_back(std::move(conv));
  state_->operations.push_back(std::move(op));
}

namespace {
Descriptor pointwise(cudnnPointwiseMode_t mode) {
  Descriptor d(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  d.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode)
      .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT)
      .finalize();
  return d;
}
}  // namespace

void CudnnGraph::identity(int x, int y) {
  state_->parts.push_back(pointwise(CUDNN_POINTWISE_IDENTITY));
  Descriptor op(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, state_->parts.back())
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, state_->tensors[static_cast<size_t>(x)])
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, state_->tensors[static_cast<size_t>(y)])
      .finalize();
  state_->operations.push_back(std::move(op));
}

void CudnnGraph::bias(int x, int b, int y) {
  state_->parts.push_back(pointwise(CUDNN_POINTWISE_ADD));
  Descriptor op(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, state_->parts.back())
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, state_->tensors[static_cast<size_t>(x)])
      .set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, state_->tensors[static_cast<size_t>(b)])
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, state_->tensors[static_cast<size_t>(y)])
      .finalize();
  state_->operations.push_back(std::move(op));
}

namespace {
// ---- from graph to candidate engine configurations
// --------------------------------------------------------------------

struct Candidate {
  std::shared_ptr<Descriptor> config;
  std::string name;
  bool tensor_cores = false;
};

bool has_note(const std::vector<cudnnBackendNumericalNote_t>& notes, cudnnBackendNumericalNote_t note) {
  return std::find(notes.begin(), notes.end(), note) != notes.end();
}

bool allowed(const std::vector<cudnnBackendNumericalNote_t>& notes, DType dtype, const PlanRules& rules) {
  if (rules.deterministic && has_note(notes, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)) return false;
  if (has_note(notes, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION)) return false;  // always FP32 accumulation
  if (dtype == DType::f32 && !rules.tensor_cores_for_f32)
    return !has_note(notes, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS) &&
           !has_note(notes, CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
  return true;
}

// Engine number and knob values: equal names are equal plans.
Candidate describe(std::shared_ptr<Descriptor> config, std::vector<cudnnBackendNumericalNote_t>& notes) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.raw();
  config->get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw);
  int64_t index = 0;
  engine.get(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &index);
  notes.resize(CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
  notes.resize(static_cast<size_t>(engine.get(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                              CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes.data())));
  std::string name = str("eng", index);
  const int64_t knobs = config->count(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR);
  std::vector<Descriptor> choices;
  std::vector<cudnnBackendDescriptor_t> raws;
  for (int64_t i = 0; i < knobs; ++i) raws.push_back(choices.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR).raw());
  if (knobs) config->get(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, knobs, raws.data());
  for (const Descriptor& choice : choices) {
    cudnnBackendKnobType_t type{};
    int64_t value = 0;
    choice.get(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type);
    choice.get(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &value);
    name += str("_k", static_cast<int>(type), "=", value);
  }
  return {std::move(config), name, has_note(notes, CUDNN_NUMERICAL_NOTE_TENSOR_CORE)};
}

Descriptor operation_graph(cudnnHandle_t handle, const CudnnGraph& graph) {
  std::vector<cudnnBackendDescriptor_t> raws;
  for (const Descriptor& op : graph.state().operations) raws.push_back(op.raw());
  Descriptor d(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  d.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<int64_t>(raws.size()), raws.data())
      .set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle)
      .finalize();
  return d;
}

// At most `most` new candidates of one graph, in the heuristics' order: mode A, then B, then the fallbacks.
void collect(const Descriptor& graph, DType dtype, const PlanRules& rules, size_t most, std::vector<Candidate>& out,
             std::string& why) {
  std::set<std::string> seen;
  size_t taken = 0;
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_FALLBACK}) {
    if (taken >= most) return;
    try {
      Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
      heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
          .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode)
          .finalize();
      const int64_t n = heuristics.count(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR);
      std::vector<std::shared_ptr<Descriptor>> configs;
      std::vector<cudnnBackendDescriptor_t> raws;
      for (int64_t i = 0; i < n; ++i) {
        configs.push_back(std::make_shared<Descriptor>(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
        raws.push_back(configs.back()->raw());
      }
      if (n) heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, n, raws.data());
      for (int64_t i = 0; i < n && taken < most; ++i) {
        std::vector<cudnnBackendNumericalNote_t> notes;
        Candidate c = describe(std::move(configs[static_cast<size_t>(i)]), notes);
        if (!allowed(notes, dtype, rules) || !seen.insert(c.name).second) continue;
        out.push_back(std::move(c));
        ++taken;
      }
    } catch (const Error& e) {
      why = e.what();
    }
  }
}

// ---- plans
// ----------------------------------------------------------------------------------------------------------------

class BackendPlan final : public CudnnPlan {
 public:
  BackendPlan(Descriptor plan, std::vector<int64_t> uids, std::string name, bool tensor_cores)
      : plan_(std::move(plan)), uids_(std::move(uids)), name_(std::move(name)), tensor_cores_(tensor_cores) {
    int64_t bytes = 0;
    plan_.get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &bytes);
    workspace_ = static_cast<size_t>(bytes);
  }

  void execute(CudaLane& lane, int device, const std::vector<void*>& pointers) const override {
    void* workspace = lane.workspace_of(workspace_, device);
    Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    const int64_t n = static_cast<int64_t>(pointers.size());
    pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, pointers.data())
        .set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, uids_.data())
        .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace)
        .finalize();
    dnn_check(cudnnBackendExecute(lane.cudnn, plan_.raw(), pack.raw()), "cudnnBackendExecute");
  }
  size_t workspace() const override { return workspace_; }
  const std::string& name() const override { return name_; }
  bool tensor_cores() const override { return tensor_cores_; }

  std::string json() const {
    const int64_t n = plan_.count(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR);
    std::string text(static_cast<size_t>(n), '\0');
    plan_.get(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, n, text.data());
    while (!text.empty() && text.back() == '\0') text.pop_back();
    return text;
  }

 private:
  Descriptor plan_;
  std::vector<int64_t> uids_;
  std::string name_;
  bool tensor_cores_;
  size_t workspace_ = 0;
};

std::unique_ptr<BackendPlan> build(cudnnHandle_t handle, const Candidate& c, const std::vector<int64_t>& uids) {
  Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle)
      .set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, *c.config)
      .finalize();
  return std::make_unique<BackendPlan>(std::move(plan), uids, c.name, c.tensor_cores);
}

// Stored as "<name>\n<tensor cores>\n<cuDNN's JSON>".
std::unique_ptr<BackendPlan> restore(cudnnHandle_t handle, const std::string& text, const std::vector<int64_t>& uids) {
  const size_t first = text.find('\n'), second = text.find('\n', first + 1);
  if (first == std::string::npos || second == std::string::npos) return nullptr;
  try {
    const std::string json = text.substr(second + 1);
    Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle)
        .set(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, static_cast<int64_t>(json.size()),
             json.c_str())
        .finalize();
    return std::make_unique<BackendPlan>(std::move(plan), uids, text.substr(0, first), text[first + 1] == '1');
  } catch (const Error&) {
    return nullptr;  // written by another cuDNN, or damaged: search again
  }
}

// Builds all candidates, several at once: a run-time compiled engine takes half a second of one core.
std::vector<std::unique_ptr<BackendPlan>> build_all(int device, cudnnHandle_t handle,
                                                    const std::vector<Candidate>& candidates,
                                                    const std::vector<int64_t>& uids, std::string& why) {
  std::vector<std::unique_ptr<BackendPlan>> plans(candidates.size());
  std::atomic<size_t> next{0};
  std::mutex mutex;
  const auto work = [&](cudnnHandle_t own) {
    for (size_t i; (i = next++) < candidates.size();) {
      try {
        plans[i] = build(own, candidates[i], uids);
      } catch (const Error& e) {  // an engine may fail to build: the others remain
        const std::lock_guard lock(mutex);
        why = e.what();
      }
    }
  };
  const size_t threads = std::min<size_t>(candidates.size(), std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::thread> pool;
  for (size_t t = 1; t < threads; ++t)
    pool.emplace_back([&] {
      cudnnHandle_t own = nullptr;
      if (cudaSetDevice(device) != cudaSuccess || cudnnCreate(&own) != CUDNN_STATUS_SUCCESS) return;
      work(own);
      cudnnDestroy(own);
    });
  work(handle);
  for (std::thread& t : pool) t.join();
  return plans;
}

PlanCache& disk_cache(const CudaContext& cuda) {
  static std::mutex mutex;
  static auto& caches = *new std::map<std::string, PlanCache*>;
  const std::lock_guard lock(mutex);
  auto& slot = caches[cuda.gpu_name];
  if (!slot) slot = new PlanCache(str("cudnn-", cudnnGetVersion(), "-", cuda.gpu_name, ".json"));
  return *slot;
}

std::shared_ptr<const CudnnPlan> search(Context& ctx, const std::string& what, const std::string& key, DType dtype,
                                        const PlanRules& rules, const std::vector<CudnnGraph>& forms,
                                        const std::vector<void*>& pointers) {
  CudaContext& cuda = ctx.cuda();
  const size_t most = tune_mode() == TuneMode::full ? 40 : tune_mode() == TuneMode::fast ? 6 : 4;
  std::unique_ptr<BackendPlan> best;
  std::string why;
  float best_us = 0;
  for (const CudnnGraph& form : forms) {
    const std::vector<int64_t>& uids = form.state().real_uids;
    std::vector<Candidate> candidates;
    std::vector<std::unique_ptr<BackendPlan>> plans;
    try {
      const Descriptor graph = operation_graph(cuda.main.cudnn, form);
      collect(graph, dtype, rules, most, candidates, why);
      if (candidates.empty() && !best) collect(graph, dtype, rules, 200, candidates, why);
      plans = build_all(cuda.device, cuda.main.cudnn, candidates, uids, why);
    } catch (const Error& e) {
      why = e.what();
      continue;
    }
    for (auto& plan : plans) {
      if (!plan) continue;
      if (plan->workspace() > rules.workspace_limit) {
        why = str("a plan needs ", plan->workspace(), " bytes of workspace, the limit is ", rules.workspace_limit);
        continue;
      }
      try {
        const float us = time_on_device(
            cuda, [&] { plan->execute(cuda.main, cuda.device, pointers); }, best_us);
        if (!best || us < best_us) {
          best = std::move(plan);
          best_us = us;
        }
      } catch (const Error& e) {
        why = e.what();
      }
      if (best && tune_mode() == TuneMode::off) break;
    }
    if (best && tune_mode() == TuneMode::off) break;
  }
  check(best != nullptr, what, ": cuDNN has no plan for this problem (", why.empty() ? "none offered" : why, ")");
  disk_cache(cuda).store(key, str(best->name(), '\n', best->tensor_cores(), '\n', best->json()));
  return best;
}
}  // namespace

std::shared_ptr<const CudnnPlan> best_plan(Context& ctx, const std::string& what, DType dtype,
                                           const std::function<std::vector<CudnnGraph>()>& forms,
                                           const std::vector<void*>& pointers) {
  thread_local std::map<std::string, std::shared_ptr<const CudnnPlan>> plans;
  CudaContext& cuda = ctx.cuda();
  const PlanRules rules = current_rules();
  const std::string key = str(what, rules.tensor_cores_for_f32 && dtype == DType::f32 ? " tf32" : "",
                              rules.deterministic ? " deterministic" : "", " ws<=", rules.workspace_limit);
  auto& plan = plans[str(cuda.device, ' ', key)];
  if (plan) return plan;
  const std::vector<CudnnGraph> graphs = forms();
  if (const auto text = disk_cache(cuda).find(key))
    plan = restore(cuda.main.cudnn, *text, graphs.front().state().real_uids);
  if (!plan) plan = search(ctx, what, key, dtype, rules, graphs, pointers);
  return plan;
}

}  // namespace ht
