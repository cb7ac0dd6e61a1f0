// Casts the inputs of ops by their rules, while installed on a thread. The casts are ordinary `cast` ops, so gradients
// come back in the inputs' types and every cast is on the tape; an op that widens a half input by itself (Op::widen)
// needs no cast op, and the trace names it all the same.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "amp/policy.h"
#include "autograd/var.h"

namespace ht::amp {

// One cast that autocast made, for a person.
struct CastRecord {
  std::string op;    // whose input it is
  size_t input = 0;  // the number of that input
  std::string name;  // the parameter, if it is one
  DType from, to;
  Rule rule;         // of the op
  size_t bytes = 0;  // read and written by the cast; 0 when the half copy was there, or in_op
  bool cached = false;
  bool in_op = false;  // no cast op: the op reads the half input as FP32 by itself
};
std::ostream& operator<<(std::ostream& out, const CastRecord& c);

class Autocast final : public InputHook {
 public:
  // `half` is what the allow list casts to. casts_ops = false: rules are not applied (levels O2 and O3), but inputs
  // that an op keeps in FP32 are still given to it in FP32.
  Autocast(Policy policy, DType half, bool casts_ops = true);
  ~Autocast() override;  // uninstalls
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

  // Puts it on this thread, above those that are there; the others come back when it goes, in whatever order they do.
  void install();
  void uninstall();
  // Called before every op, inside disable_casts too.
  void set_observer(std::function<void()> observer) { observer_ = std::move(observer); }

  // Throws Error for a forbidden op on a half input: with the reason, which names what to use instead.
  void before(Op& op, std::vector<Var>& inputs) override;
  // What amp's next backward will start with: the loss scale. Undefined: not known before it.
  void set_seed(Tensor seed) { seed_ = std::move(seed); }
  Tensor seed() const override { return seed_; }
  bool overrides(std::string_view op) const override { return casts_ops_ && policy_.overrides(op); }

  const Policy& policy() const { return policy_; }
  DType half() const { return half_; }

  // Records every cast from here on; take_trace gives them and stops.
  void start_trace();
  std::vector<CastRecord> take_trace();

 private:
  void cast_input(Op& op, std::vector<Var>& inputs, size_t i, DType to);

  Policy policy_;
  DType half_;
  bool casts_ops_;
  bool tracing_ = false;
  std::vector<CastRecord> trace_;
  std::function<void()> observer_;
  Tensor seed_;
};

// While alive, no input is cast on this thread: `amp::disable_casts guard;`. Nests. Ops then need inputs of one dtype.
class disable_casts {
 public:
  disable_casts();
  ~disable_casts();
  disable_casts(const disable_casts&) = delete;
  disable_casts& operator=(const disable_casts&) = delete;
};
bool casts_enabled();

}  // namespace ht::amp
