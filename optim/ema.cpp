#include "optim/ema.h"

#include "core/build.h"
#include "optim/blocks.h"

namespace ht::optim {

namespace {
template <class A>
void update_cpu(const EmaItem& item, A rate) {
  for_blocks(item.source.numel(), [&](int64_t at, int64_t n) {
    A buffer[kBlock];
    const A* source = load(item.source, at, n, buffer);
    A* average = item.average.data<A>() + at;
    for (int64_t i = 0; i < n; ++i) average[i] += rate * (source[i] - average[i]);
  });
}
}  // namespace

Ema::Ema(Module& model, std::unique_ptr<Module> average, const Optimizer& optimizer, const EmaOptions& options)
    : optimizer_(optimizer), average_(std::move(average)), options_(options) {
  check(options.decay >= 0 && options.decay < 1, "ema: decay is ", options.decay, "; it must be in [0, 1)");
  check(options.every >= 1, "ema: every is ", options.every, " steps; it must be at least 1");
  average_->load_state_dict(model.state_dict());
  average_->to(optimizer.device());
  average_->eval();
  const auto pair_up = [&](const auto& sources, const auto& averages) {
    for (size_t i = 0; i < sources.size(); ++i) {
      const auto& [name, source] = sources[i];
      const Var& target = averages[i].second;
      check(source.device() == optimizer.device(), "ema: ", name, " is not on the optimizer's device, ",
            optimizer.device(), " (", Named{name, source.value()}, ")");
      if (!is_floating(source.dtype())) {
        copied_.push_back({source, target});
        continue;
      }
      const DType wide = source.dtype() == DType::f64 ? DType::f64 : DType::f32;
      check(target.dtype() == wide, "ema: the average of ", name, " must be ", wide, " (",
            Named{"average", target.value()}, ", ", Named{"model", source.value()}, ")");
      averaged_.push_back({source, target});
    }
  };
  pair_up(model.named_parameters(), average_->named_parameters());
  pair_up(model.named_buffers(), average_->named_buffers());
}

void Ema::update(int64_t step) {
  if (step % options_.every != 0) return;
  std::vector<EmaItem> items;
  for (const Pair& p : averaged_) items.push_back({p.average.value(), p.source.master()});
  const Tensor& applied = optimizer_.applied_counter();
  const StepRecord* record = optimizer_.record_on_device();
  for (const EmaItem& item : items) item.average.bump_version();
  if constexpr (kCudaBuild) {
    if (applied.device().is_cuda()) return ema_cuda(options_, items, applied, record);
  }
  if (record && record->skip) return;
  const double rate = ema_rate(options_, *applied.data<int64_t>());
  for (const EmaItem& item : items)
    item.average.dtype() == DType::f64 ? update_cpu(item, rate) : update_cpu(item, static_cast<float>(rate));
}

Module& Ema::model() const {
  for (const Pair& p : copied_) p.average.value().copy_(p.source.value());
  return *average_;
}

}  // namespace ht::optim
