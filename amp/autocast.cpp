#include "amp/autocast.h"

#include <algorithm>
#include <ostream>
#include <utility>

#include "ops/ops.h"

namespace ht::amp {

namespace {
thread_local int disabled = 0;
// The installed ones of this thread, and the hook that was there before the first.
thread_local std::vector<Autocast*> stack;
thread_local InputHook* below = nullptr;

bool is_kept(const OpInfo& op, size_t input) { return input < op.args.size() && op.args[input] == ArgTag::keep; }

// f64 > f32 > either half; two different halves meet in f32.
DType wider(DType a, DType b) { return a == b ? a : is_half(a) && is_half(b) ? DType::f32 : std::min(a, b); }
}  // namespace

std::ostream& operator<<(std::ostream& out, const CastRecord& c) {
  out << c.op << " input " << c.input;
  if (!c.name.empty()) out << " (" << c.name << ")";
  out << ": " << c.from << " -> " << c.to << ", ";
  c.in_op ? out << "in the op" : c.cached ? out << "cached" : out << c.bytes << " bytes";
  return out << "; " << name_of(c.rule.tag) << ": " << c.rule.reason;
}

Autocast::Autocast(Policy policy, DType half, bool casts_ops)
    : policy_(std::move(policy)), half_(half), casts_ops_(casts_ops) {
  check(is_half(half), "autocast: ", half, " is not a half dtype; use f16 or bf16");
}

Autocast::~Autocast() { uninstall(); }

void Autocast::install() {
  uninstall();
  InputHook* before = set_input_hook(this);
  if (stack.empty()) below = before;
  stack.push_back(this);
}

void Autocast::uninstall() {
  if (std::erase(stack, this) == 0) return;
  set_input_hook(stack.empty() ? below : stack.back());
}

void Autocast::cast_input(Op& op, std::vector<Var>& inputs, size_t i, DType to) {
  const Var x = inputs[i];
  if (x.dtype() == to) return;
  const OpInfo& info = op.info();
  const std::string& name = x.state()->name;
  // A leaf that is trained, or frozen but of a module: it keeps its half copy.
  const bool parameter = x.is_leaf() && x.dtype() == DType::f32 && is_half(to) && (x.requires_grad() || !name.empty());
  const bool cached = parameter && x.has_half_copy(to);
  const bool in_op = to == DType::f32 && is_half(x.dtype()) && !is_kept(info, i) && op.widen(i);
  if (!in_op) inputs[i] = parameter ? cast_parameter(x, to) : cast(x, to);
  if (!tracing_) return;
  const size_t elements = static_cast<size_t>(x.value().numel());
  Rule rule = policy_.rule(info);
  if (is_kept(info, i)) rule.reason = "this input is FP32 always";
  trace_.push_back({std::string(info.name), i, name, x.dtype(), to, std::move(rule),
                    cached || in_op ? 0 : elements * (size_of(x.dtype()) + size_of(to)), cached, in_op});
}

void Autocast::before(Op& op, std::vector<Var>& inputs) {
  if (observer_) observer_();
  if (disabled > 0) return;
  const OpInfo& info = op.info();
  const AmpTag tag = policy_.tag(info);
  // Of the inputs that go by the tag: floating ones, and none are cast when one is f64, which is wider than any rule.
  bool any = false;
  DType widest = DType::bf16;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i] || !is_floating(inputs[i].dtype())) continue;
    if (is_kept(info, i)) {
      if (is_half(inputs[i].dtype())) cast_input(op, inputs, i, DType::f32);
      continue;
    }
    widest = any ? wider(widest, inputs[i].dtype()) : inputs[i].dtype();
    any = true;
  }
  if (!casts_ops_ || !any || tag == AmpTag::leave) return;
  if (widest == DType::f64 && tag != AmpTag::promote) return;
  const DType to = tag == AmpTag::allow ? half_ : tag == AmpTag::promote ? widest : DType::f32;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i] || !is_floating(inputs[i].dtype()) || is_kept(info, i)) continue;
    if (tag == AmpTag::forbid && is_half(inputs[i].dtype()))
      fail(op.name(), ": forbidden in half precision: ", policy_.rule(info).reason, " (",
           Named{str("input ", i), inputs[i].value()}, ")");
    cast_input(op, inputs, i, to);
  }
}

void Autocast::start_trace() {
  trace_.clear();
  tracing_ = true;
}

std::vector<CastRecord> Autocast::take_trace() {
  tracing_ = false;
  return std::exchange(trace_, {});
}

disable_casts::disable_casts() { ++disabled; }
disable_casts::~disable_casts() { --disabled; }
bool casts_enabled() { return disabled == 0; }

}  // namespace ht::amp
