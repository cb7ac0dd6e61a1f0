// cuDNN's graph API in one place: describe a small graph of operations, find its fastest plan, run it.
// Tensors are named by uid; shapes are given as cuDNN wants them, (n, c, h, w), with NHWC strides.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/cuda_context.h"
#include "core/dtype.h"

namespace ht {

enum class ConvKind : uint8_t { forward, data_gradient, weight_gradient };
std::string_view name_of(ConvKind kind);

struct ConvGeometry {
  int64_t stride = 1, padding = 0, dilation = 1;
};

// A built plan; execute is cheap and may be captured.
class CudnnPlan {
 public:
  virtual ~CudnnPlan() = default;
  virtual void execute(CudaLane& lane, int device, const std::vector<void*>& pointers) const = 0;
  virtual size_t workspace() const = 0;
  virtual size_t tensors() const = 0;           // how many of execute's pointers, the first ones, are its own
  virtual const std::string& name() const = 0;  // "eng4_k2=0_k25=1": engine and knobs
  virtual bool tensor_cores() const = 0;        // by the engine's own note
};

// A graph under construction. Pointers of execute go in the order in which the real tensors were added.
class CudnnGraph {
 public:
  CudnnGraph();
  ~CudnnGraph();
  CudnnGraph(CudnnGraph&&) noexcept;

  // NHWC image or [out, kh, kw, in] weight of a Tensor [n, h, w, c]; `is_virtual`: an intermediate that never exists.
  int tensor(const Shape& nhwc, DType dtype, bool is_virtual = false);
  void convolution(ConvKind kind, int x, int w, int y, const ConvGeometry& geometry, DType compute = DType::f32);
  void identity(int x, int y);
  // Sums of x and of x^2 over all but the channels, [1, 1, 1, c] f32 each.
  void channel_sums(int x, int sum, int squares);
  // Adds a per-channel bias [1, 1, 1, c].
  void bias(int x, int b, int y);

  struct State;
  State& state() { return *state_; }
  const State& state() const { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

// What a plan may do.
struct PlanRules {
  bool tensor_cores_for_f32 = false;  // TF32
  bool deterministic = false;
  size_t workspace_limit = size_t{1} << 30;  // bytes
};
PlanRules current_rules();

// The fastest plan of any of the equivalent graphs that `forms` makes (called on a miss only), timed on `pointers`
// (whose outputs are overwritten), from memory or the disk cache where the problem was met before. `what` names the
// problem in the cache and in the error that is thrown when no plan works: op, shapes, dtypes, cuDNN's own message.
// `batch` and `dtype` are those of the data; plans on disk are restored together by them. Forms may differ in how many
// of the pointers they take: `rest` queues what a plan leaves to do, and is timed with it.
std::shared_ptr<const CudnnPlan> best_plan(Context& ctx, const std::string& what, int64_t batch, DType dtype,
                                           const std::function<std::vector<CudnnGraph>()>& forms,
                                           const std::vector<void*>& pointers,
                                           const std::function<void(const CudnnPlan&)>& rest = {});

}  // namespace ht
