#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "amp/report.h"
#include "ops/ops.h"

namespace ht::amp {

namespace {
// Watches one forward and backward, on top of another hook.
class Recorder final : public InputHook {
 public:
  struct Entry {
    const Op* op;
    std::string name, label;
    Tensor y, dy;
    Grads grads;
  };

  // Over amp's hook, or in its place (without its casts, but with the same ops fused).
  Recorder(InputHook& amp, bool casts) : amp_(amp), casts_(casts), outer_(set_input_hook(this)) {}
  ~Recorder() override { set_input_hook(outer_); }

  void before(Op& op, std::vector<Var>& inputs) override {
    if (casts_) amp_.before(op, inputs);  // its casts come here, too, before the op itself
    label_.clear();
    for (const Var& v : inputs) {
      if (!v) continue;
      const auto cast_of = names_.find(v.value().data());
      const std::string& name = cast_of != names_.end() ? cast_of->second : v.state()->name;
      if (!name.empty()) label_ += (label_.empty() ? "" : ", ") + name;
    }
  }
  bool overrides(std::string_view op) const override { return amp_.overrides(op); }
  void after(const Op& op, const Tensor& y) override {
    if (op.name() == "cast" && !label_.empty()) names_[y.data()] = label_;  // the half copy of a parameter
    entries.push_back({&op, std::string(op.name()), std::exchange(label_, {}), y, {}, {}});
  }
  void gradients(const Op& op, const Tensor& dy, const Grads& grads) override {
    // The newest at this address: ops that are not on the tape are gone already.
    for (size_t i = entries.size(); i-- > 0;) {
      if (entries[i].op != &op) continue;
      entries[i].dy = dy, entries[i].grads = grads;
      return walked.push_back(i);
    }
  }

  std::vector<Entry> entries;
  std::vector<size_t> walked;  // by backward, in its order

 private:
  InputHook& amp_;
  bool casts_;
  InputHook* outer_;
  std::string label_;
  std::map<const void*, std::string> names_;
};

// Puts back what a run of the model changes, or what was set for it.
class Rewind {
 public:
  explicit Rewind(Amp& amp) : amp_(amp), buffers_(amp.buffers()), position_(generator().position()) {
    for (const Var& b : buffers_) saved_.push_back(b.value().clone());
    for (const Var& p : amp.parameters()) {
      VarState& s = *p.state();
      states_.push_back({s.value, s.twin, s.grad, s.twin_lag, s.grad_scaled});
    }
  }
  ~Rewind() {
    restore_buffers();
    generator().set_position(position_);
    for (size_t i = 0; i < states_.size(); ++i) {
      VarState& s = *amp_.parameters()[i].state();
      s.value = states_[i].value, s.twin = states_[i].twin, s.grad = states_[i].grad;
      s.twin_lag = states_[i].twin_lag, s.grad_scaled = states_[i].grad_scaled;
    }
  }
  Rewind(const Rewind&) = delete;
  Rewind& operator=(const Rewind&) = delete;

  // As at the start of the step.
  void start() {
    restore_buffers();
    generator().set_position(amp_.random_position());
    for (const Var& p : amp_.parameters()) p.zero_grad();
  }

 private:
  struct State {
    Tensor value, twin, grad;
    uint64_t twin_lag;
    bool grad_scaled;
  };
  Generator& generator() const { return Context::of(amp_.parameters().front().device()).generator(); }
  void restore_buffers() {
    for (size_t i = 0; i < saved_.size(); ++i) buffers_[i].value().copy_(saved_[i]);
  }

  Amp& amp_;
  std::vector<Var> buffers_;
  std::vector<Tensor> saved_;
  std::vector<State> states_;
  uint64_t position_;
};

Var in_fp32(const Tensor& t) { return cast(Var(t), DType::f32); }

bool is_finite(const Tensor& t) {  // 0 * infinity is NaN
  return !is_floating(t.dtype()) || std::isfinite(sum(scale(in_fp32(t), 0)).item());
}

double distance(const Tensor& a, double factor, const Tensor& reference) {
  const Var b = in_fp32(reference);
  const double size = norm(b).item(), difference = norm(sub(scale(in_fp32(a), factor), b)).item();
  return size > 0 ? difference / size : difference > 0 ? std::numeric_limits<double>::infinity() : 0;
}

std::string first_non_finite(const Recorder& r, double scale) {
  const auto at = [&](size_t i) {
    const Recorder::Entry& e = r.entries[i];
    return str(e.name, e.label.empty() ? "" : " (" + e.label + ")", ", tape index ", i);
  };
  for (size_t i = 0; i < r.entries.size(); ++i)
    if (!is_finite(r.entries[i].y)) return str("first non-finite in the output of ", at(i), ": the model diverges");
  for (const size_t i : r.walked)
    for (const Tensor& g : r.entries[i].grads)
      if (g.defined() && !is_finite(g))
        return str("first non-finite in the backward of ", at(i), ", scale ", scale, "; forward finite");
  return {};
}

GradientGauge gauge(const Var& p, const std::string& name, double scale, DType half) {
  const bool f16 = half == DType::f16;
  const double flush = f16 ? 0x1p-25 : 0x1p-134, normal = f16 ? 0x1p-14 : 0x1p-126;
  GradientGauge g{.name = name, .exponents = std::vector<int64_t>(GradientGauge::kExponents)};
  for (const double value : p.grad().to_vector()) {
    const double size = std::abs(value) * scale;
    ++g.elements;
    g.zeros += size == 0;
    if (size == 0 || !std::isfinite(size)) continue;
    g.flushed += size <= flush;  // a tie goes to zero
    g.subnormal += size > flush && size < normal;
    g.largest = std::max(g.largest, std::abs(value));
    const int bin = std::clamp(std::ilogb(size) - GradientGauge::kLowest, 0, GradientGauge::kExponents - 1);
    ++g.exponents[static_cast<size_t>(bin)];
  }
  const double most = f16 ? 65504 : 0x1.fep127;
  g.headroom = g.largest > 0 ? std::log2(most / (g.largest * scale)) : std::numeric_limits<double>::infinity();
  return g;
}

bool is_cast(const Recorder::Entry& e) { return e.name == "cast"; }
}  // namespace

StepReport examine(Amp& amp, const std::function<Var()>& loss, double scale) {
  StepReport report{.dtype = amp.autocast().half()};
  report.scale = scale > 0 ? scale : amp.scale();
  const auto run = [&](double seed) {
    const Var y = loss();
    y.backward(Tensor::full(y.shape(), seed, DType::f32, y.device()));
  };
  Rewind rewind(amp);
  rewind.start();
  amp.autocast().start_trace();
  Recorder half(amp.autocast(), true);
  run(report.scale);
  report.casts = amp.autocast().take_trace();

  rewind.start();
  for (const Var& p : amp.parameters()) {
    VarState& s = *p.state();
    s.value = p.master().to(DType::f32);
    s.twin = {};
  }
  const disable_casts guard;
  Recorder full(amp.autocast(), false);
  run(1);
  set_input_hook(nullptr);
  const no_grad off;
  report.first_non_finite = first_non_finite(half, report.scale);
  for (const Var& p : amp.parameters())
    if (p.grad_slot().defined()) report.gradients.push_back(gauge(p, p.state()->name, report.scale, report.dtype));

  std::erase_if(half.entries, is_cast);
  std::erase_if(full.entries, is_cast);
  check(half.entries.size() == full.entries.size(), "amp::examine: the two runs differ: ", half.entries.size(), " and ",
        full.entries.size(), " ops; `loss` must do the same each time");
  for (size_t i = 0; i < half.entries.size(); ++i) {
    const Recorder::Entry &h = half.entries[i], &f = full.entries[i];
    OpError e{.op = h.name, .label = h.label};
    if (is_floating(h.y.dtype())) e.output = distance(h.y, 1, f.y);
    if (h.dy.defined() && f.dy.defined()) e.gradient = distance(h.dy, 1 / report.scale, f.dy);
    report.errors.push_back(std::move(e));
  }
  return report;
}

}  // namespace ht::amp
