// The second half of core/cudnn_graph.h: from a graph to its fastest plan.
#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "core/cuda_check.h"
#include "core/cuda_timing.h"
#include "core/cudnn_backend.h"
#include "core/plan_cache.h"

namespace ht {

PlanRules current_rules() { return {tf32(), deterministic(), workspace_limit()}; }

namespace {
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
  std::vector<Descriptor> choices;  // room for all: their number is not told before
  std::vector<cudnnBackendDescriptor_t> raws;
  for (int i = 0; i < CUDNN_KNOB_TYPE_COUNTS; ++i)
    raws.push_back(choices.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR).raw());
  const int64_t knobs = config->get(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                    CUDNN_KNOB_TYPE_COUNTS, raws.data());
  for (int64_t i = 0; i < knobs; ++i) {
    const Descriptor& choice = choices[static_cast<size_t>(i)];
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

class BackendPlan final : public CudnnPlan {
 public:
  BackendPlan(Descriptor plan, std::vector<int64_t> uids, std::string name, bool tensor_cores)
      : plan_(std::move(plan)), uids_(std::move(uids)), name_(std::move(name)), tensor_cores_(tensor_cores) {
    int64_t bytes = 0;
    plan_.get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &bytes);
    workspace_ = static_cast<size_t>(bytes);
  }

  static std::unique_ptr<BackendPlan> build(cudnnHandle_t handle, const Candidate& c,
                                            const std::vector<int64_t>& uids) {
    Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle)
        .set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, *c.config)
        .finalize();
    return std::make_unique<BackendPlan>(std::move(plan), uids, c.name, c.tensor_cores);
  }

  // As text: "<name> <tensor cores> <number of uids> <uids>\n<cuDNN's JSON>".
  std::string save() const {
    std::string text = str(name_, ' ', tensor_cores_, ' ', uids_.size());
    for (const int64_t uid : uids_) text += str(' ', uid);
    const int64_t n = plan_.count(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR);
    std::string json(static_cast<size_t>(n), '\0');
    plan_.get(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, n, json.data());
    while (!json.empty() && json.back() == '\0') json.pop_back();
    return text + '\n' + json;
  }

  // Throws Error when the text is damaged or from another cuDNN.
  static std::unique_ptr<BackendPlan> restore(cudnnHandle_t handle, const std::string& text) {
    std::istringstream in(text);
    std::string name, json;
    bool tensor_cores = false;
    size_t count = 0;
    in >> name >> tensor_cores >> count;
    check(in && count <= CUDNN_DIM_MAX, "plan: the header is damaged");
    std::vector<int64_t> uids(count);
    for (int64_t& uid : uids) in >> uid;
    check(in && in.get() == '\n' && std::getline(in, json, '\0'), "plan: the text is damaged");
    Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle)
        .set(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, static_cast<int64_t>(json.size()),
             json.c_str())
        .finalize();
    return std::make_unique<BackendPlan>(std::move(plan), std::move(uids), name, tensor_cores);
  }

  void execute(CudaLane& lane, int device, const std::vector<void*>& pointers) const override {
    void* workspace = lane.workspace_of(workspace_, device);
    Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    const int64_t n = static_cast<int64_t>(uids_.size());
    pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, pointers.data())
        .set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, uids_.data())
        .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace)
        .finalize();
    cudnn_check(cudnnBackendExecute(lane.cudnn, plan_.raw(), pack.raw()), "cudnnBackendExecute");
  }
  size_t workspace() const override { return workspace_; }
  size_t tensors() const override { return uids_.size(); }
  const std::string& name() const override { return name_; }
  bool tensor_cores() const override { return tensor_cores_; }

 private:
  Descriptor plan_;
  std::vector<int64_t> uids_;
  std::string name_;
  bool tensor_cores_;
  size_t workspace_ = 0;
};

// make(i, handle) -> plan for each i in [0, n), `per_thread` or more a thread: a run-time compiled engine takes half a
// second of one core. A plan that cannot be made is null, and `why` says why.
std::vector<std::unique_ptr<BackendPlan>> make_plans(
    CudaContext& cuda, size_t n, size_t per_thread, std::string& why,
    const std::function<std::unique_ptr<BackendPlan>(size_t, cudnnHandle_t)>& make) {
  // The helping threads' handles are kept, since making one may take longer than a plan does; never destroyed, since
  // the driver may be gone at exit.
  static std::mutex one_at_a_time;
  static auto& handles = *new std::map<int, std::vector<cudnnHandle_t>>;
  const std::lock_guard lock(one_at_a_time);
  const size_t threads =
      std::min<size_t>((n + per_thread - 1) / per_thread, std::clamp(std::thread::hardware_concurrency(), 1u, 16u));
  auto& kept = handles[cuda.device];
  kept.resize(std::max(kept.size(), threads));

  std::vector<std::unique_ptr<BackendPlan>> plans(n);
  std::atomic<size_t> next{0};
  std::mutex why_mutex;
  const auto work = [&](cudnnHandle_t handle) {
    for (size_t i; (i = next++) < n;) {
      try {
        plans[i] = make(i, handle);
      } catch (const Error& e) {
        const std::lock_guard why_lock(why_mutex);
        why = e.what();
      }
    }
  };
  std::vector<std::jthread> pool;
  for (size_t t = 1; t < threads; ++t)
    pool.emplace_back([&, &own = kept[t]] {
      if (cudaSetDevice(cuda.device) != cudaSuccess) return;
      if (!own && cudnnCreate(&own) != CUDNN_STATUS_SUCCESS) own = nullptr;
      if (own) work(own);
    });
  work(cuda.main.cudnn);
  pool.clear();  // joins
  return plans;
}

PlanCache& disk_cache(const CudaContext& cuda) { return plan_cache("cudnn", cudnnGetVersion(), cuda.gpu_name); }

// The search may need far more workspace than its winner: while this lives, the lane's own is put aside.
class WorkspaceOfSearch {
 public:
  explicit WorkspaceOfSearch(CudaLane& lane) : lane_(lane), own_(std::exchange(lane.workspace, {})) {}
  ~WorkspaceOfSearch() { lane_.workspace = own_; }
  WorkspaceOfSearch(const WorkspaceOfSearch&) = delete;
  WorkspaceOfSearch& operator=(const WorkspaceOfSearch&) = delete;

 private:
  CudaLane& lane_;
  Tensor own_;
};

// The fastest of at least `most` plans of the first form, and a quarter as many of the others, that work within the
// rules, as far as there are so many among the heuristics' first `offered`; the first that works when nothing is to be
// timed; null: none.
std::unique_ptr<BackendPlan> fastest(CudaContext& cuda, DType dtype, const PlanRules& rules,
                                     const std::vector<CudnnGraph>& forms, size_t most, size_t offered,
                                     const std::vector<void*>& pointers,
                                     const std::function<void(const CudnnPlan&)>& rest, std::string& why) {
  std::unique_ptr<BackendPlan> best;
  float best_us = 0;
  const auto time_of = [&](const BackendPlan& plan) -> std::optional<float> {
    if (plan.workspace() > rules.workspace_limit) {
      why = str("a plan needs ", plan.workspace(), " bytes of workspace, the limit is ", rules.workspace_limit);
      return {};
    }
    const auto run = [&] {
      plan.execute(cuda.main, cuda.device, pointers);
      if (rest) rest(plan);
    };
    try {
      if (tune_mode() != TuneMode::off) return time_on_device(cuda, run, best_us);
      run();
      synchronize_cuda(cuda);
      return 1;
    } catch (const Error& e) {  // refused at run time: the others remain
      why = e.what();
      return {};
    }
  };
  for (const CudnnGraph& form : forms) {
    std::vector<Candidate> candidates;
    try {
      collect(operation_graph(cuda.main.cudnn, form), dtype, rules, offered, candidates, why);
    } catch (const Error& e) {
      why = e.what();
    }
    // The further forms' plans are compiled at run time, a second each: fewer are worth the wait.
    const size_t enough = &form == &forms.front() ? most : (most + 3) / 4;
    size_t working = 0;
    for (size_t begin = 0; begin < candidates.size() && working < enough; begin += enough) {
      auto plans =
          make_plans(cuda, std::min(enough, candidates.size() - begin), 1, why, [&](size_t i, cudnnHandle_t h) {
            return BackendPlan::build(h, candidates[begin + i], form.state().real_uids);
          });
      for (auto& plan : plans) {
        const auto us = plan ? time_of(*plan) : std::nullopt;
        if (!us) continue;
        ++working;
        if (tune_mode() == TuneMode::off) return std::move(plan);
        if (best && *us >= best_us) continue;
        best = std::move(plan);
        best_us = *us;
      }
    }
  }
  return best;
}

std::unique_ptr<BackendPlan> search(CudaContext& cuda, const std::string& what, DType dtype, const PlanRules& rules,
                                    const std::vector<CudnnGraph>& forms, const std::vector<void*>& pointers,
                                    const std::function<void(const CudnnPlan&)>& rest) {
  const size_t first = tune_mode() == TuneMode::full ? 40 : tune_mode() == TuneMode::fast ? 8 : 2;
  const WorkspaceOfSearch workspace(cuda.main);
  cuda.join();  // nothing beside what is timed
  std::string why = "none offered";
  for (const size_t offered : {3 * first, size_t{200}})  // further ones only while none works
    if (auto best = fastest(cuda, dtype, rules, forms, first, offered, pointers, rest, why)) return best;
  fail(what, ": cuDNN has no plan for this problem (", why, ")");
}

using PlanMap = std::map<std::string, std::unique_ptr<BackendPlan>>;

// Plans of earlier runs, ready before they are asked for: where one problem of a group is met, the others soon are.
void restore_group(CudaContext& cuda, const std::string& group, PlanMap& to) {
  const auto entries = disk_cache(cuda).find_all(group);
  std::string why;  // one that cannot be restored is searched anew
  auto plans = make_plans(cuda, entries.size(), 4, why, [&](size_t i, cudnnHandle_t handle) {
    return BackendPlan::restore(handle, entries[i].second);
  });
  for (size_t i = 0; i < plans.size(); ++i) to[entries[i].first] = std::move(plans[i]);
}
}  // namespace

std::shared_ptr<const CudnnPlan> best_plan(Context& ctx, const std::string& what, int64_t batch, DType dtype,
                                           const std::function<std::vector<CudnnGraph>()>& forms,
                                           const std::vector<void*>& pointers,
                                           const std::function<void(const CudnnPlan&)>& rest) {
  thread_local std::map<std::string, std::shared_ptr<const CudnnPlan>> plans;  // in use
  thread_local std::map<std::pair<int, TuneMode>, PlanMap> restored;           // null: it did not work, or is in use
  CudaContext& cuda = ctx.cuda();
  const PlanRules rules = current_rules();
  const std::string group =
      str(dtype, rules.tensor_cores_for_f32 && dtype == DType::f32 ? " tf32" : "",
          rules.deterministic ? " deterministic" : "", " ws<=", rules.workspace_limit, " batch ", batch, ": ");
  const std::string key = group + what;
  auto& plan = plans[str(cuda.device, ' ', name_of(tune_mode()), ' ', key)];
  if (plan) return plan;
  PlanMap& ready = restored[{cuda.device, tune_mode()}];
  if (!ready.contains(key) && disk_cache(cuda).find(key)) restore_group(cuda, group, ready);
  std::unique_ptr<BackendPlan> found;
  if (const auto it = ready.find(key); it != ready.end()) found = std::move(it->second);
  if (!found) {
    found = search(cuda, what, dtype, rules, forms(), pointers, rest);
    disk_cache(cuda).store(key, found->save());
  }
  note_plan({what, found->name(), found->tensor_cores()});
  return plan = std::move(found);
}

}  // namespace ht
