#include "core/cublaslt_gemm.h"

#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "core/cuda_check.h"
#include "core/cuda_timing.h"
#include "core/plan_cache.h"
#include "core/small_gemm.h"

namespace ht {

namespace {
void lt_check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) fail(call, ": ", cublasLtGetStatusName(status));
}
#define HT_LT(call) lt_check((call), #call)

cudaDataType_t lt_type(DType t) {
  switch (t) {
    case DType::f64:
      return CUDA_R_64F;
    case DType::f32:
      return CUDA_R_32F;
    case DType::f16:
      return CUDA_R_16F;
    case DType::bf16:
      return CUDA_R_16BF;
    default:
      fail("matmul: dtype ", t, " is not floating");
  }
}

// Owns the descriptors of one problem. cuBLASLt is column-major: C^T = op(B)^T op(A)^T, so that B comes first, A
// second, and a row of C (length n) is a column, which is also where its bias epilogue runs.
class Descriptors {
 public:
  Descriptors(const GemmProblem& p, const void* bias) {
    const bool f64 = p.dtype == DType::f64;
    const cublasComputeType_t compute = f64                               ? CUBLAS_COMPUTE_64F
                                        : p.dtype == DType::f32 && tf32() ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                          : CUBLAS_COMPUTE_32F;
    HT_LT(cublasLtMatmulDescCreate(&op, compute, f64 ? CUDA_R_64F : CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p.bias || p.relu) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, p.bias && p.relu ? CUBLASLT_EPILOGUE_RELU_BIAS
                                         : p.bias         ? CUBLASLT_EPILOGUE_BIAS
                                                          : CUBLASLT_EPILOGUE_RELU);
      if (p.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
      if (p.bias) set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, lt_type(p.out));
    }
    layout(first, p.trans_b ? p.k : p.n, p.trans_b ? p.n : p.k, p.dtype, p.batch, p.stride_b);
    layout(second, p.trans_a ? p.m : p.k, p.trans_a ? p.k : p.m, p.dtype, p.batch, p.stride_a);
    layout(result, p.n, p.m, p.out, p.batch, p.stride_c);
  }
  ~Descriptors() {
    if (op) cublasLtMatmulDescDestroy(op);
    for (cublasLtMatrixLayout_t l : {first, second, result})
      if (l) cublasLtMatrixLayoutDestroy(l);
  }
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;

  cublasLtMatmulDesc_t op = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t name, T value) {
    HT_LT(cublasLtMatmulDescSetAttribute(op, name, &value, sizeof(value)));
  }
  static void layout(cublasLtMatrixLayout_t& l, int64_t rows, int64_t cols, DType t, int64_t batch, int64_t stride) {
    HT_LT(cublasLtMatrixLayoutCreate(&l, lt_type(t), static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), rows));
    if (batch == 1) return;
    check(batch <= std::numeric_limits<int32_t>::max(), "matmul: ", batch, " products at once; cuBLASLt takes up to ",
          std::numeric_limits<int32_t>::max());
    const int32_t count = static_cast<int32_t>(batch);
    HT_LT(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)));
    HT_LT(cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof(stride)));
  }
};

// Bytes to which both operands and the result are aligned: what the algorithms may assume.
uint32_t alignment_of(const void* p) {
  const auto v = reinterpret_cast<uintptr_t>(p);
  return static_cast<uint32_t>(std::min<uintptr_t>(v & (~v + 1), 256));
}

size_t largest_workspace() { return std::min<size_t>(workspace_limit(), size_t{64} << 20); }

std::vector<cublasLtMatmulHeuristicResult_t> algorithms(CudaContext& cuda, const Descriptors& d, int most, uint32_t a,
                                                        uint32_t b, uint32_t c) {
  cublasLtMatmulPreference_t preference = nullptr;
  HT_LT(cublasLtMatmulPreferenceCreate(&preference));
  const size_t workspace = largest_workspace();
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t name, const auto& value) {
    cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof(value));
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c);
  if (deterministic()) {  // the in-place reduction of split-K adds in the order in which blocks finish
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK & ~uint32_t{CUBLASLT_REDUCTION_SCHEME_INPLACE};
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
  }
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(most));
  int n = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(cuda.cublas_lt, d.op, d.first, d.second, d.result,
                                                               d.result, preference, most, found.data(), &n);
  cublasLtMatmulPreferenceDestroy(preference);
  found.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<size_t>(n) : 0);
  return found;
}

struct Choice {
  cublasLtMatmulAlgo_t algo{};
  size_t workspace = 0;
  SmallGemmPlan small;  // has blocks: this instead
};

constexpr const char* kSmall = "small_gemm";

std::string encode(const Choice& choice) {
  if (choice.small.blocks) return str(kSmall, ' ', choice.small.tile, ' ', choice.small.blocks);
  std::ostringstream out;
  out << choice.workspace;
  for (const uint64_t word : choice.algo.data) out << ' ' << word;
  return out.str();
}

// Nothing when the text is damaged or its algorithm does not take this problem.
std::optional<Choice> decode(CudaContext& cuda, const Descriptors& d, const std::vector<SmallGemmPlan>& small,
                             const std::string& text) {
  for (const SmallGemmPlan& plan : small)
    if (const Choice choice{.small = plan}; text == encode(choice)) return choice;
  std::istringstream in(text);
  Choice choice;
  in >> choice.workspace;
  for (uint64_t& word : choice.algo.data) in >> word;
  cublasLtMatmulHeuristicResult_t result{};
  if (!in || cublasLtMatmulAlgoCheck(cuda.cublas_lt, d.op, d.first, d.second, d.result, d.result, &choice.algo,
                                     &result) != CUBLAS_STATUS_SUCCESS)
    return std::nullopt;
  choice.workspace = result.workspaceSize;
  return choice.workspace <= largest_workspace() ? std::optional(choice) : std::nullopt;
}

PlanChoice describe(const std::string& problem, DType dtype, const Choice& choice) {
  if (choice.small.blocks) return {problem, encode(choice), is_half(dtype)};
  const cublasLtMatmulAlgo_t& algo = choice.algo;
  const auto setting = [&](cublasLtMatmulAlgoConfigAttributes_t name) {
    int32_t value = 0;
    size_t written = 0;
    cublasLtMatmulAlgoConfigGetAttribute(&algo, name, &value, sizeof(value), &written);
    return value;
  };
  uint64_t flags = 0;
  size_t written = 0;
  cublasLtMatmulAlgoCapGetAttribute(&algo, CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS, &flags, sizeof(flags), &written);
  return {problem,
          str("algo", setting(CUBLASLT_ALGO_CONFIG_ID), "_tile", setting(CUBLASLT_ALGO_CONFIG_TILE_ID), "_stages",
              setting(CUBLASLT_ALGO_CONFIG_STAGES_ID), "_splitk", setting(CUBLASLT_ALGO_CONFIG_SPLITK_NUM)),
          (flags & CUBLASLT_NUMERICAL_IMPL_FLAGS_TENSOR_OP_MASK) != 0};
}

void run(CudaContext& cuda, CudaLane& lane, const GemmProblem& p, const Choice& choice, const GemmOperands& at) {
  if (choice.small.blocks) return small_gemm(cuda, lane, p, choice.small, at);
  const Descriptors d(p, at.bias);
  const float one32 = 1, zero32 = 0;
  const double one64 = 1, zero64 = 0;
  const bool f64 = p.dtype == DType::f64;
  const void* one = f64 ? static_cast<const void*>(&one64) : &one32;
  const void* zero = f64 ? static_cast<const void*>(&zero64) : &zero32;
  HT_LT(cublasLtMatmul(cuda.cublas_lt, d.op, one, at.b, d.first, at.a, d.second, zero, at.c, d.result, at.c, d.result,
                       &choice.algo, lane.workspace_of(choice.workspace, cuda.device), choice.workspace, lane.stream));
}

PlanCache& disk_cache(const CudaContext& cuda) { return plan_cache("cublaslt", cublasLtGetVersion(), cuda.gpu_name); }

Choice choose(CudaContext& cuda, const GemmProblem& p, const std::string& key, const std::vector<SmallGemmPlan>& small,
              const GemmOperands& at, const std::function<void()>& separately) {
  const Descriptors d(p, at.bias);
  if (const auto text = disk_cache(cuda).find(key))
    if (const auto choice = decode(cuda, d, small, *text)) return *choice;
  cuda.join();  // nothing beside what is timed
  const int most = tune_mode() == TuneMode::full ? 24 : tune_mode() == TuneMode::fast ? 8 : 1;
  std::vector<Choice> candidates;
  for (const auto& found : algorithms(cuda, d, most, alignment_of(at.a), alignment_of(at.b), alignment_of(at.c)))
    candidates.push_back({found.algo, found.workspaceSize, {}});
  if (most > 1 || candidates.empty())
    for (const SmallGemmPlan& plan : small) candidates.push_back({.small = plan});
  std::optional<Choice> best;
  float best_us = 0;
  for (const Choice& choice : candidates) {
    if (candidates.size() == 1) return choice;
    try {
      const auto work = [&] {
        run(cuda, cuda.main, p, choice, at);
        if (p.row_sums && !choice.small.blocks) separately();
      };
      const float us = time_on_device(cuda, work, best_us);
      if (best && us >= best_us) continue;
      best = choice;
      best_us = us;
    } catch (const Error&) {  // an algorithm may refuse at run time: the others remain
    }
  }
  check(best.has_value(), "cuBLASLt: no algorithm for ", key);
  disk_cache(cuda).store(key, encode(*best));
  return *best;
}

// The kernel of a problem, searched for where it is met first.
Choice choice_of(CudaContext& cuda, const GemmProblem& p, const GemmOperands& at,
                 const std::function<void()>& separately) {
  const bool on_tensor_cores = p.dtype == DType::f32 && tf32();
  const std::vector<SmallGemmPlan> small =
      on_tensor_cores ? std::vector<SmallGemmPlan>{} : small_gemm_plans(cuda, p, at);
  const std::string key =
      str("gemm ", p.m, 'x', p.n, 'x', p.k, " batch ", p.batch, ' ', p.stride_a, ' ', p.stride_b, ' ', p.stride_c,
          p.trans_a ? " At" : "", p.trans_b ? " Bt" : "", ' ', p.dtype, "->", p.out, p.bias ? " bias" : "",
          p.relu ? " relu" : "", on_tensor_cores ? " tf32" : "", deterministic() ? " deterministic" : "",
          small.empty() ? ""
          : p.row_sums  ? " or small, row sums"
                        : " or small",
          " ws<=", largest_workspace(), " align ",
          std::min({alignment_of(at.a), alignment_of(at.b), alignment_of(at.c), 16u}));
  thread_local std::map<std::string, Choice> choices;
  const auto [it, fresh] = choices.try_emplace(str(cuda.device, ' ', name_of(tune_mode()), ' ', key));
  if (fresh) {
    try {
      it->second = choose(cuda, p, key, small, at, separately);
      note_plan(describe(key, p.dtype, it->second));
    } catch (...) {
      choices.erase(it);
      throw;
    }
  }
  return it->second;
}
}  // namespace

GemmCall cublaslt_gemm(Context& ctx, const GemmProblem& p, const GemmOperands& at,
                       const std::function<void()>& separately) {
  CudaContext& cuda = ctx.cuda();
  const Choice choice = choice_of(cuda, p, at, separately);
  return {[&cuda, p, at, choice](CudaLane& lane) { run(cuda, lane, p, choice, at); },
          p.row_sums && choice.small.blocks > 0};
}

}  // namespace ht
