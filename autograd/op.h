// The contract of an operation. An Op object is one call of it: attributes and saved tensors are its typed members, and
// after forward the same object is the node on the tape. Ops see only Tensors: they can neither record nor be autocast.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/context.h"
#include "core/tensor.h"

namespace ht {

class Var;

// How amp treats the op's inputs.
enum class AmpTag : uint8_t {
  allow,    // cast to half: matrix products gain, FP32 accumulation keeps them right
  deny,     // cast to FP32: range or precision needs it
  promote,  // cast to the widest input
  leave,    // takes the type as it comes
  forbid,   // an error in half, with the reason
};
std::string_view name_of(AmpTag tag);

// How amp treats one input: by the op's tag, or never cast. Integer inputs are never cast.
enum class ArgTag : uint8_t { by_tag, keep };

// One gradcheck case: `function` of the differentiable float64 inputs, made of the op under test.
struct Sample {
  std::string label;
  std::vector<Tensor> inputs;  // f64 on the CPU, away from kinks
  std::function<Var(std::span<const Var>)> function;
};

struct OpInfo {
  std::string_view name;
  AmpTag tag;
  std::string_view reason;                   // why this tag, one line
  std::vector<Sample> (*samples)();          // several shapes, odd sizes, batch 1
  std::vector<ArgTag> args = {};             // missing entries are by_tag
  std::vector<std::string_view> parts = {};  // names of the ops that a fused op is made of
};

using Inputs = std::span<const Tensor>;
using Grads = std::vector<Tensor>;  // one an input; undefined where not needed or not differentiable

class Op {
 public:
  virtual ~Op() = default;
  virtual const OpInfo& info() const = 0;
  std::string_view name() const { return info().name; }
  // What a trace says of this call besides the name: "f32 -> f16, cached".
  virtual std::string note() const { return {}; }
  // Asked before infer: does this call read its half input k as the FP32 numbers that a cast would make of it? A yes
  // binds the call: output and arithmetic are as of the FP32 input, the gradient is rounded once, to the half dtype.
  virtual bool widen(size_t /*k*/) { return false; }
  // Checks shapes and dtypes (throws Error) and gives the output's. Runs before forward.
  virtual TensorSpec infer(Inputs in) const = 0;
  // Computes the output, of the spec that infer gave, on ctx's device.
  virtual Tensor forward(Context& ctx, Inputs in, const TensorSpec& out) = 0;
  // The gradients of the inputs in their own shapes and dtypes, only those that `needs` asks for. dy has the output's
  // shape and dtype. May run more than once (retain_graph), so it must leave the saved members as they are.
  virtual Grads backward(Context& ctx, const Tensor& dy, const std::vector<bool>& needs) = 0;

  // In MemoryMode::low a saved input that its own op can make again is not kept: it is dropped after forward and
  // restored before backward. An op that cannot do the one or the other leaves these as they are.
  virtual bool recomputes() const { return false; }
  virtual Tensor recompute(Context&) { return {}; }  // the output, bit for bit, without an input that was dropped
  virtual bool drop_input(size_t /*k*/) { return false; }
  virtual void restore_input(size_t /*k*/, const Tensor& /*input*/) {}
};

// A tensor kept for backward, with its version: reading it after someone wrote to it is an Error.
class Saved {
 public:
  Saved() = default;
  Saved(const Tensor& t) : tensor_(t), version_(t.version()) {}
  const Tensor& operator*() const {
    check(tensor_.version() == version_, "a saved tensor was written after forward (", tensor_, "; version ",
          tensor_.version(), ", saved at ", version_, "); run backward before writing, or clone() it first");
    return tensor_;
  }
  const Tensor* operator->() const { return &**this; }
  explicit operator bool() const { return tensor_.defined(); }

 private:
  Tensor tensor_;
  uint64_t version_ = 0;
};

}  // namespace ht
