#include "amp/amp.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/captured_step.h"
#include "ops/ops.h"

namespace ht::amp {

using optim::BufferGuard;
using optim::LossScaler;
using optim::ScalerState;
using optim::StepControl;
using optim::StepRecord;

struct Amp::Impl {
  Settings settings;
  std::shared_ptr<LossScaler> scaler;                  // none when disabled
  std::vector<std::shared_ptr<StepControl>> controls;  // one an optimizer, which refers to it weakly
  std::vector<Var> params;                             // of all optimizers
  std::unique_ptr<Autocast> autocast;
  uint64_t random_position = 0;

  const Generator& generator() const { return Context::of(scaler->device()).generator(); }
};

Amp::Amp(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Amp::Amp(Amp&&) noexcept = default;
Amp& Amp::operator=(Amp&&) noexcept = default;
Amp::~Amp() = default;

bool Amp::enabled() const { return impl_->settings.enabled; }
const Settings& Amp::settings() const { return impl_->settings; }

Autocast& Amp::autocast() {
  check(enabled(), "amp: it is disabled (level O0 or enabled = false), so nothing is cast");
  return *impl_->autocast;
}

const std::vector<Var>& Amp::parameters() const { return impl_->params; }

std::vector<Var> Amp::buffers() const {
  std::vector<Var> all;
  for (const auto& control : impl_->controls)
    for (const BufferGuard::Entry& e : control->buffers.entries()) all.push_back(e.buffer);
  return all;
}

uint64_t Amp::random_position() const { return impl_->random_position; }

void Amp::check_id(int id) const {
  check(id >= 0 && id < impl_->scaler->count(), "amp: there is no loss ", id, "; num_losses is ",
        impl_->scaler->count());
}

void Amp::backward(const Var& loss, int id, bool retain_graph) {
  if (!enabled()) return loss.backward({}, retain_graph);
  LossScaler& scaler = *impl_->scaler;
  const Settings& s = impl_->settings;
  on_replay([me = impl_.get()] { me->random_position = me->generator().position(); });
  check_id(id);
  check(loss.requires_grad() && loss.value().numel() == 1, "amp.backward: the loss must be a scalar that requires a ",
        "gradient (", Named{"loss", loss.value()}, ")");
  check(loss.device() == scaler.device(), "amp.backward: the loss is on another device than the parameters (",
        Named{"loss", loss.value()}, ", loss scale ", scaler.device(), ")");
  check(loss.dtype() != DType::f16 || (!s.dynamic_scale && s.scale <= 65504), "amp.backward: a loss scale ",
        s.dynamic_scale ? "that grows from " : "of ", s.scale, " does not fit an f16 loss; compute the loss in FP32: ",
        "by a loss function of the deny list (O1), or from a model output cast to FP32 (", Named{"loss", loss.value()},
        ")");
  check(!scaler.delayed() || scaler.scaled() || !scaler.round_open(),
        "amp.backward: unscale() was called in this step, so a scaled gradient cannot be added; call step() first");

  std::vector<Tensor> before;
  if (!scaler.delayed())
    for (const Var& p : impl_->params) before.push_back(std::exchange(p.grad_slot(), {}));
  try {
    const Tensor seed = scaler.begin_backward(loss.value(), id);
    loss.backward(seed.view(loss.shape()), retain_graph);
  } catch (...) {
    for (size_t i = 0; i < before.size(); ++i) impl_->params[i].grad_slot() = before[i];
    throw;
  }
  if (!scaler.delayed()) return scaler.unscale(id, impl_->params, before);
  const bool scaled = s.dynamic_scale || s.scale != 1;
  for (const Var& p : impl_->params) p.state()->grad_scaled = scaled && p.grad_slot().defined();
}

void Amp::unscale() {
  if (!enabled()) return;
  check(impl_->scaler->scaled(), "amp.unscale: the gradients are not scaled: ",
        impl_->scaler->delayed() ? "call it once, between amp.backward(loss) and step()"
                                 : "with several losses or optimizers amp.backward has unscaled them already");
  impl_->scaler->unscale(0, impl_->params, {});
}

std::vector<Tensor> Amp::status_sources(int id, int optimizer) const {
  if (!enabled()) return {};
  check_id(id);
  check(optimizer >= 0 && optimizer < static_cast<int>(impl_->controls.size()), "amp: there is no optimizer ",
        optimizer, "; there are ", impl_->controls.size());
  const StepControl& control = *impl_->controls[static_cast<size_t>(optimizer)];
  return {impl_->scaler->states(), control.record, control.applied};
}

Status Amp::status_of(std::span<const Tensor> copies, int id, int optimizer) const {
  if (!enabled()) return {};
  const StepControl& control = *impl_->controls[static_cast<size_t>(optimizer)];
  const auto s = optim::read_struct<ScalerState>(copies[0], id);
  const auto record = optim::read_struct<StepRecord>(copies[1]);
  control.check_skips(record);
  return {s.scale,          s.growth_tracker,         static_cast<int64_t>(copies[2].item()),
          record.skips,     record.consecutive_skips, record.skips > 0 ? control.cause(record) : "",
          record.last_scale};
}

Status Amp::status(int id, int optimizer) const {
  std::vector<Tensor> copies = status_sources(id, optimizer);
  for (Tensor& t : copies) t = t.to(Device::cpu());
  return status_of(copies, id, optimizer);
}

StateDict Amp::state_dict() const {
  StateDict state;
  if (!enabled()) return state;
  for (int i = 0; i < impl_->scaler->count(); ++i) {
    const ScalerState s = impl_->scaler->read(i);
    const std::string key = str("loss_scaler.", i, ".");
    state[key + "scale"] = Tensor::full({}, s.scale);
    state[key + "growth_tracker"] = Tensor::full({}, s.growth_tracker, DType::i64);
  }
  for (size_t i = 0; i < impl_->controls.size(); ++i) {
    const auto record = optim::read_struct<StepRecord>(impl_->controls[i]->record);
    const std::string key = str("optimizer.", i, ".");
    state[key + "skipped_steps"] = Tensor::full({}, static_cast<double>(record.skips), DType::i64);
    state[key + "consecutive_skips"] = Tensor::full({}, static_cast<double>(record.consecutive_skips), DType::i64);
  }
  return state;
}

void Amp::load_state_dict(const StateDict& state) {
  if (!enabled()) return;
  check(!state.empty(), "amp: load_state_dict: the state is empty: it was saved before initialize() or by a disabled ",
        "Amp. Leave the call out to start with a fresh loss scale");
  std::vector<std::string> missing, unexpected, mismatched;
  const StateDict mine = state_dict();
  for (const auto& [key, tensor] : mine) {
    const auto it = state.find(key);
    if (it == state.end()) {
      missing.push_back(key);
    } else if (!it->second.defined() || it->second.numel() != 1 || it->second.dtype() != tensor.dtype() ||
               !std::isfinite(it->second.item()) || it->second.item() < 0 ||
               (key.ends_with("scale") && it->second.item() == 0)) {
      mismatched.push_back(key);
    }
  }
  for (const auto& [key, tensor] : state)
    if (!mine.contains(key)) unexpected.push_back(key);
  check(missing.empty() && unexpected.empty() && mismatched.empty(), "amp: load_state_dict: ", missing.size(),
        " missing [", list_keys(missing), "], ", unexpected.size(), " unexpected [", list_keys(unexpected), "], ",
        mismatched.size(), " mismatched [", list_keys(mismatched),
        "]; nothing was loaded. Initialize with the num_losses and optimizers that it was saved with");
  for (int i = 0; i < impl_->scaler->count(); ++i) {
    const std::string key = str("loss_scaler.", i, ".");
    ScalerState s;
    s.scale = static_cast<float>(state.at(key + "scale").item());
    s.growth_tracker = static_cast<int32_t>(state.at(key + "growth_tracker").item());
    impl_->scaler->write(i, s);
  }
  for (size_t i = 0; i < impl_->controls.size(); ++i) {
    const std::string key = str("optimizer.", i, ".");
    StepRecord record;
    record.skips = static_cast<int64_t>(state.at(key + "skipped_steps").item());
    record.consecutive_skips = static_cast<int64_t>(state.at(key + "consecutive_skips").item());
    optim::write_struct(record, impl_->controls[i]->record);
  }
}

namespace {
// The module that a parameter or buffer belongs to: "features.0." of "features.0.weight".
std::string module_of(const std::string& name) { return name.substr(0, name.rfind('.') + 1); }

// Modules with running statistics.
std::set<std::string> batch_norms(const Module& model) {
  std::set<std::string> names;
  for (const auto& [name, buffer] : model.named_buffers())
    if (name.ends_with("running_mean")) names.insert(module_of(name));
  return names;
}

void make_half(Module& model, const Settings& s) {
  const std::set<std::string> norms = batch_norms(model);
  for (const auto& [name, p] : model.named_parameters()) {
    if (s.keep_batchnorm_fp32 && norms.contains(module_of(name))) continue;
    if (s.master_weights) {
      p.set_half_with_master(s.dtype);
    } else {
      p.set_value(p.value().to(s.dtype));
      p.zero_grad();
    }
  }
  const auto cast_from = [](DType from, DType to) {
    return [from, to](const Var& x) { return x.dtype() == from && casts_enabled() ? cast(x, to) : x; };
  };
  std::function<Var(const Var&)> after;
  if (s.cast_model_outputs) after = cast_from(s.dtype, DType::f32);
  model.set_call_hooks(cast_from(DType::f32, s.dtype), std::move(after));
}

// A model's buffers, each to the optimizer that owns the weight beside it (a batch norm's gamma), else to the first.
void share_buffers(const Module& model, const std::vector<optim::Optimizer*>& optimizers,
                   std::vector<std::vector<Var>>& shares) {
  std::map<std::string, VarState*> weights;
  for (const auto& [name, p] : model.named_parameters())
    if (name.ends_with("weight")) weights[module_of(name)] = p.state().get();
  for (const auto& [name, buffer] : model.named_buffers()) {
    const auto weight = weights.find(module_of(name));
    size_t owner = 0;
    for (size_t i = 0; i < optimizers.size() && weight != weights.end(); ++i)
      for (const Var& p : optimizers[i]->all_params())
        if (p.state().get() == weight->second) owner = i;
    shares[owner].push_back(buffer);
  }
}
}  // namespace

Amp initialize(Module& model, optim::Optimizer& optimizer, const Options& options) {
  return initialize(std::vector<Module*>{&model}, {&optimizer}, options);
}

Amp initialize(const std::vector<Module*>& models, const std::vector<optim::Optimizer*>& optimizers,
               const Options& options) {
  auto impl = std::make_unique<Amp::Impl>();
  impl->settings = resolve(options);
  const Settings& s = impl->settings;
  check(!models.empty() && !optimizers.empty(), "amp: initialize needs a model and an optimizer");
  if (!s.enabled) return Amp(std::move(impl));
  for (const Module* model : models)
    for (const auto& [name, p] : model->named_parameters())
      check(p.dtype() == DType::f32, "amp: initialize expects FP32 parameters, but ", name,
            " is not; levels O2 and O3 make a model half once (", Named{name, p.value()}, ")");

  const optim::ScalerOptions scaling{.dynamic = s.dynamic_scale,
                                     .init_scale = s.scale,
                                     .growth_factor = options.growth_factor,
                                     .backoff_factor = options.backoff_factor,
                                     .min_scale = options.min_loss_scale,
                                     .max_scale = options.max_loss_scale,
                                     .growth_interval = options.growth_interval,
                                     .max_consecutive_skips = options.max_consecutive_skips};
  const bool delayed = options.num_losses == 1 && optimizers.size() == 1;
  impl->scaler = std::make_shared<LossScaler>(scaling, options.num_losses, delayed, optimizers.front()->device());
  std::vector<std::vector<Var>> shares(optimizers.size());
  for (const Module* model : models) share_buffers(*model, optimizers, shares);
  for (size_t i = 0; i < optimizers.size(); ++i) {
    auto control = std::make_shared<StepControl>();
    control->scaler = impl->scaler;
    control->buffers = BufferGuard(shares[i]);
    control->first_index = static_cast<int>(impl->params.size());
    optimizers[i]->attach(control);
    impl->controls.push_back(std::move(control));
    const std::vector<Var> params = optimizers[i]->all_params();
    impl->params.insert(impl->params.end(), params.begin(), params.end());
  }
  if (s.half_weights)
    for (Module* model : models) make_half(*model, s);
  impl->autocast = std::make_unique<Autocast>(s.policy, s.dtype, s.casts_ops);
  impl->autocast->set_observer([me = impl.get()] {
    bool first = false;
    for (const auto& control : me->controls) first |= control->buffers.refresh();
    if (first) me->random_position = me->generator().position();
  });
  impl->autocast->set_seed(impl->scaler->seed());
  impl->random_position = impl->generator().position();
  impl->autocast->install();
  return Amp(std::move(impl));
}

}  // namespace ht::amp
