#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/build.h"
#include "core/range.h"
#include "optim/clip.h"
#include "optim/early_check.h"

namespace ht::optim {

namespace {
DType accumulate_dtype(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }
}  // namespace

void check_hyperparameter(std::string_view optimizer, std::string_view field, double value, size_t group) {
  check(std::isfinite(value) && value >= 0, optimizer, ": ", field, " is ", value, " in group ", group,
        "; it must be finite and at least 0");
}

double Rate::now() const { return values.at(std::min(static_cast<int64_t>(applied.item()), values.numel() - 1)); }

void Optimizer::add_group(std::vector<Var> params, double lr, std::vector<std::string> buffer_names) {
  const size_t index = groups_.size();
  check_hyperparameter(name_, "lr", lr, index);
  Group group;
  for (size_t i = 0; i < params.size(); ++i) {
    const Var& p = params[i];
    const std::string where = str(name_, ": parameter ", i, " of group ", index);
    check(p.defined() && p.value().defined(), where, " is undefined");
    check(p.is_leaf(), where, " is a result of ops, not a leaf; pass the module's parameters (", Named{"p", p.value()},
          ")");
    check(p.requires_grad(), where, " does not require a gradient; leave it out or call set_requires_grad(true) (",
          Named{"p", p.value()}, ")");
    const auto same = [&](const Var& other) { return other.state() == p.state(); };
    bool again = std::any_of(params.begin(), params.begin() + static_cast<int64_t>(i), same);
    for (const Group& g : groups_) again |= std::any_of(g.params.begin(), g.params.end(), same);
    check(!again, where, " is listed twice; each parameter may be in one group, once (", Named{"p", p.value()}, ")");
    if (!applied_.defined()) {
      const Tensor zero = Tensor::zeros({1}, DType::i64);
      applied_ = zero.to(p.device());
    }
    check(p.device() == applied_.device(), where, " is on another device than the first one, which is on ",
          applied_.device(), "; use an optimizer a device (", Named{"p", p.value()}, ")");
    std::vector<Tensor> buffers;
    for (size_t b = 0; b < buffer_names.size(); ++b)
      buffers.push_back(Tensor::zeros(p.shape(), accumulate_dtype(p.dtype()), p.device()));
    group.buffers.push_back(std::move(buffers));
    group.keys.push_back(p.state()->name);
  }
  group.params = std::move(params);
  group.buffer_names = std::move(buffer_names);
  group.steps = Tensor::zeros({static_cast<int64_t>(group.params.size())}, DType::i64);
  group.lr = lr;
  groups_.push_back(std::move(group));
}

void Optimizer::finish() {
  check(applied_.defined(), name_, ": there are no parameters");
  std::set<std::string> names;
  bool unique = true;
  for (const Group& g : groups_)
    for (const std::string& key : g.keys) unique &= !key.empty() && names.insert(key).second;
  size_t number = 0;
  for (Group& g : groups_) {
    for (std::string& key : g.keys) {
      if (!unique) key = std::to_string(number);
      ++number;
    }
    g.steps = g.steps.to(applied_.device());
  }
  for (size_t i = 0; i < groups_.size(); ++i) set_lr(groups_[i].lr, i);
}

void Optimizer::zero_grad() {
  for (const Group& g : groups_)
    for (const Var& p : g.params) p.zero_grad();
  if (early_) early_->forget();
  const std::shared_ptr<StepControl> control = control_.lock();
  if (!control || !control->scaler->delayed()) return;
  control->scaler->abandon();
  control->stepped_round = control->scaler->round();
}

std::vector<UpdateItem> Optimizer::items_of(const Group& group, int first_index) const {
  std::vector<UpdateItem> items;
  for (size_t i = 0; i < group.params.size(); ++i) {
    const Var& var = group.params[i];
    const Tensor& param = var.master();
    const Tensor& grad = group.params[i].grad_slot();
    if (!grad.defined()) continue;
    check(grad.shape() == param.shape() && grad.device() == param.device() && is_floating(grad.dtype()), name_,
          ": the gradient of ", group.keys[i], " does not fit (", Named{"param", param}, ", ", Named{"grad", grad},
          ")");
    check(param.device() == applied_.device(), name_, ": ", group.keys[i],
          " has moved since the optimizer was made, with state on ", applied_.device(),
          "; make the optimizer after module.to(device) (", Named{"param", param}, ")");
    for (const Tensor& buffer : group.buffers[i])
      check(buffer.shape() == param.shape() && buffer.dtype() == accumulate_dtype(param.dtype()), name_, ": ",
            group.keys[i],
            " has changed its shape or dtype since the optimizer was made; make the optimizer after module.to(dtype) (",
            Named{"param", param}, ", ", Named{"state", buffer}, ")");
    const int64_t row = static_cast<int64_t>(i);
    const VarState& state = *var.state();
    Tensor half;  // brought up to date first: a skipped step will not
    if (state.twin.defined()) half = is_half(var.dtype()) ? var.value() : var.half_copy(state.twin.dtype());
    items.push_back(
        {param, grad, group.steps.rows(row, row + 1), group.buffers[i], half, first_index + static_cast<int>(i)});
  }
  return items;
}

void Optimizer::step() {
  const Range range(name_, "step");
  const std::shared_ptr<StepControl> control = control_.lock();
  std::vector<UpdateItem> items;
  std::vector<size_t> ends;
  int index = control ? control->first_index : 0;
  for (const Group& g : groups_) {
    const std::vector<UpdateItem> more = items_of(g, index);
    items.insert(items.end(), more.begin(), more.end());
    ends.push_back(items.size());
    index += static_cast<int>(g.params.size());
  }
  if (control) control->scaler->check_round(name_, control->stepped_round);
  const Scaling scaling = control ? control->scaler->take() : Scaling{};
  const GradRule rule = judge_gradients(items, control.get(), scaling);
  size_t begin = 0;
  for (size_t i = 0; i < groups_.size(); begin = ends[i++])
    update(i, {groups_[i].rates, applied_}, std::span(items).subspan(begin, ends[i] - begin), rule);
  finish_step(items, rule, control.get(), scaling);
}

// Few enough for each block of one launch to wait for the others, and nothing that such a launch cannot do.
bool Optimizer::takes_one_launch(std::span<const UpdateItem> items, const StepControl* control) const {
  constexpr int64_t kMost = 1 << 20;  // elements
  if (!device().is_cuda() || groups_.size() != 1 || items.size() > size_t{kTableSize} || clips_by_norm()) return false;
  if (control && (!control->scaler->delayed() || !control->buffers.entries().empty())) return false;
  int64_t elements = 0;
  for (const UpdateItem& item : items) {
    if (item.param.dtype() != items.front().param.dtype()) return false;
    elements += item.numel();
  }
  return elements > 0 && elements <= kMost;
}

// Are the gradients finite, and what is their norm? The verdict stays on the device.
GradRule Optimizer::judge_gradients(std::span<const UpdateItem> items, const StepControl* control,
                                    const Scaling& scaling) {
  if (!control) early_.reset();
  GradRule rule{{}, clip_.value};
  if (control || clips_by_norm()) {
    make_record();
    rule.record = record_;
  }
  if (takes_one_launch(items, control)) {
    if (early_) early_->forget();  // gradients that are not among these
    if (!meeting_) meeting_ = Tensor::zeros({int64_t{sizeof(Meeting)}}, DType::u8, device());
    rule.whole = WholeStep{reinterpret_cast<Meeting*>(meeting_.data<uint8_t>()),
                           applied_.data<int64_t>(),
                           rule.on_device(),
                           scaling.on_device(),
                           scaling.seed ? scaling.seed.data<float>() : nullptr,
                           scaling.loss.data(),
                           scaling.loss.dtype(),
                           scaling.first,
                           scaling.scaled,
                           scaling.moving,
                           scaling.options};
    return rule;
  }
  if (!rule.record) return rule;
  if constexpr (kCudaBuild) {
    if (device().is_cuda()) {
      std::vector<UpdateItem> rest;
      const Tensor seen = early_ ? early_->take(items, rest) : Tensor();
      judge_gradients_cuda(seen ? rest : items, record_, partials_, scaling, clip_.norm, seen);
      return rule;
    }
  }
  StepRecord& record = *rule.on_device();
  double squares = 0;
  for (const UpdateItem& item : items) {
    if (clips_by_norm()) squares += sum_of_squares(item.grad);
    if (!control || all_finite(item.grad)) continue;
    record.bad_gradient = 1;
    record.first_bad = std::max(record.first_bad, item.index);
  }
  judge(record, scaling.on_device(), scaling.count, scaling.scaled, squares, clip_.norm);
  return rule;
}

void Optimizer::finish_step(std::span<const UpdateItem> items, const GradRule& rule, StepControl* control,
                            const Scaling& scaling) {
  for (const UpdateItem& item : items) {
    item.param.bump_version();
    if (item.half) item.half.bump_version();
    for (const Tensor& buffer : item.buffers) buffer.bump_version();
  }
  for (const Group& g : groups_)
    for (const Var& p : g.params) p.state()->grad_scaled = false;
  if (control) control->stepped_round = control->scaler->round();
  if (scaling.seed) scaling.seed.bump_version();
  if constexpr (kCudaBuild) {
    if (device().is_cuda()) {
      const auto buffers = control ? control->buffers.settle() : std::span<const BufferGuard::Entry>();
      if (!rule.whole) finish_step_cuda(items, applied_, rule.record, buffers, scaling);
      return;
    }
  }
  if (!rule.skip()) {
    for (const UpdateItem& item : items) ++*item.step.data<int64_t>();
    ++*applied_.data<int64_t>();
  }
  if (!control) return;
  control->buffers.settle_cpu(rule.skip());
  settle(*rule.on_device(), scaling.on_device(), scaling.count, scaling.scaled, scaling.moving, scaling.options);
}

void Optimizer::make_record() {
  if (record_) return;
  record_ = Tensor::zeros({int64_t{sizeof(StepRecord)}}, DType::u8, device());
  write_struct(StepRecord{}, record_);
}

void Optimizer::set_clip(const ClipOptions& clip) {
  check(clip.norm >= 0, name_, ": clip.norm is ", clip.norm, "; it must be at least 0");
  check(clip.value >= 0, name_, ": clip.value is ", clip.value, "; it must be at least 0");
  clip_ = clip;
  if (early_) early_->set_on(!clips_by_norm());
}

void Optimizer::attach(const std::shared_ptr<StepControl>& control) {
  check(control->scaler->device() == device(), name_, ": its state is on ", device(), ", the loss scaler on ",
        control->scaler->device());
  const std::shared_ptr<StepControl> now = control_.lock();
  check(!now || now == control, name_, ": another Amp steps this optimizer already; destroy that one first");
  make_record();
  control->optimizer = name_;
  control->keys = keys();
  control->record = record_;
  control->applied = applied_;
  control->stepped_round = 0;
  control_ = control;
  if (!device().is_cuda() || !control->scaler->delayed()) return;  // else the scaler looks at them as it unscales
  early_ = EarlyCheck::of(all_params(), control->first_index);
  early_->set_on(!clips_by_norm());
}

StepRecord Optimizer::record() const { return record_ ? read_struct<StepRecord>(record_) : StepRecord{}; }

const StepRecord* Optimizer::record_on_device() const {
  return control_.expired() ? nullptr : GradRule{record_}.on_device();
}

void Optimizer::check_skips() const {
  if (const std::shared_ptr<StepControl> control = control_.lock()) control->check_skips();
}

int64_t Optimizer::applied_steps() const {
  check_skips();
  return static_cast<int64_t>(applied_.item());
}

const Optimizer::Group& Optimizer::group_at(size_t group) const {
  check(group < groups_.size(), name_, ": there is no group ", group, "; the optimizer has ", groups_.size());
  return groups_[group];
}

const std::vector<Var>& Optimizer::params(size_t group) const { return group_at(group).params; }

std::vector<Var> Optimizer::all_params() const {
  std::vector<Var> all;
  for (const Group& g : groups_) all.insert(all.end(), g.params.begin(), g.params.end());
  return all;
}

std::vector<std::string> Optimizer::keys() const {
  std::vector<std::string> all;
  for (const Group& g : groups_) all.insert(all.end(), g.keys.begin(), g.keys.end());
  return all;
}

double Optimizer::lr(size_t group) const {
  check_skips();
  return rate(group).now();
}

void Optimizer::set_lr(double lr) {
  for (size_t i = 0; i < groups_.size(); ++i) set_lr(lr, i);
}

void Optimizer::set_lr(double lr, size_t group) {
  group_at(group);
  check_hyperparameter(name_, "lr", lr, group);
  groups_[group].lr = lr;
  groups_[group].rates = Tensor::full({1}, lr, DType::f64, applied_.device());
}

void Optimizer::set_schedule(const Schedule& schedule, int64_t total_steps) {
  check(schedule.factor != nullptr, name_, ": the schedule has no factor");
  check(total_steps >= 1, name_, ": the schedule's total_steps is ", total_steps, "; it must be at least 1");
  const Tensor factors = Tensor::empty({total_steps + 1}, DType::f64);
  for (int64_t i = 0; i <= total_steps; ++i) {
    const double factor = schedule.factor(i);
    check(std::isfinite(factor) && factor >= 0, name_, ": schedule '", schedule.text, "' gives ", factor, " at step ",
          i, "; a factor must be finite and at least 0");
    factors.data<double>()[i] = factor;
  }
  for (Group& g : groups_) {
    const Tensor rates = factors.clone();
    for (int64_t i = 0; i <= total_steps; ++i) rates.data<double>()[i] *= g.lr;
    g.rates = rates.to(applied_.device());
  }
}

template <class F>
void Optimizer::visit_state(F&& f) const {
  f("applied_steps", applied_.view({}));
  for (const Group& g : groups_) {
    for (size_t i = 0; i < g.params.size(); ++i) {
      const int64_t row = static_cast<int64_t>(i);
      f(g.keys[i] + ".step", g.steps.rows(row, row + 1).view({}));
      for (size_t b = 0; b < g.buffer_names.size(); ++b) f(g.keys[i] + "." + g.buffer_names[b], g.buffers[i][b]);
    }
  }
}

StateDict Optimizer::state_dict() const {
  StateDict state;
  visit_state([&](const std::string& key, const Tensor& t) {
    state[key] = t.device().is_cuda() ? t.to(Device::cpu()) : t.clone();
  });
  return state;
}

void Optimizer::load_state_dict(const StateDict& state) {
  std::vector<std::string> missing, unexpected, mismatched;
  StateDict rest = state;
  visit_state([&](const std::string& key, const Tensor& t) {
    const auto it = state.find(key);
    rest.erase(key);
    if (it == state.end()) {
      missing.push_back(key);
    } else if (!it->second.defined() || it->second.shape() != t.shape() || it->second.dtype() != t.dtype()) {
      mismatched.push_back(str(key, " (file ", it->second, ", optimizer ", t, ")"));
    } else if (t.dtype() == DType::i64 && it->second.item() < 0) {
      mismatched.push_back(str(key, " (", it->second.item(), " steps)"));
    }
  });
  for (const auto& [key, tensor] : rest) unexpected.push_back(key);
  check(missing.empty() && unexpected.empty() && mismatched.empty(), name_, ": load_state_dict: ", missing.size(),
        " missing [", list_keys(missing), "], ", unexpected.size(), " unexpected [", list_keys(unexpected), "], ",
        mismatched.size(), " mismatched [", list_keys(mismatched),
        "]; nothing was loaded. Make the optimizer with the parameters and options that it was saved with");
  visit_state([&](const std::string& key, const Tensor& t) { t.copy_(state.at(key)); });
}

}  // namespace ht::optim
