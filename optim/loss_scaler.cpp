#include "optim/loss_scaler.h"

#include <utility>

#include "core/build.h"
#include "optim/blocks.h"

namespace ht::optim {

bool all_finite(const Tensor& t) {
  bool finite = true;
  dispatch_floating(t.dtype(), "all_finite", [&]<class T>() {
    const T* values = t.data<T>();
    for (int64_t at = 0; at < t.numel() && finite; at += kBlock) {
      bool bad = false;
      for (int64_t i = at; i < std::min(at + kBlock, t.numel()); ++i) bad |= !finite_bits(values[i]);
      finite = !bad;
    }
  });
  return finite;
}

LossScaler::LossScaler(const ScalerOptions& options, int count, bool delayed, Device device)
    : options_(options), count_(count), delayed_(delayed) {
  check(count >= 1 && count <= 64, "loss scaler: num_losses is ", count, "; it must be 1 to 64");
  check(!delayed || count == 1, "loss scaler: ", count, " losses cannot share scaled gradients");
  states_ = Tensor::zeros({count * int64_t{sizeof(ScalerState)}}, DType::u8, device);
  if (delayed && device.is_cuda()) seed_ = Tensor::empty({}, DType::f32, device);
  for (int i = 0; i < count; ++i) write(i, {.scale = static_cast<float>(options.init_scale)});
}

ScalerState LossScaler::read(int id) const { return read_struct<ScalerState>(states_, id); }
void LossScaler::write(int id, const ScalerState& state) const {
  write_struct(state, states_, id);
  if (seed_) seed_.fill_(state.scale);
}

// What begin_backward has left for later.
void LossScaler::note_loss() {
  if constexpr (kCudaBuild) {
    if (loss_) begin_backward_cuda(states_, count_, 0, first_, std::exchange(loss_, {}), {});
  }
}

Tensor LossScaler::begin_backward(const Tensor& loss, int id) {
  const bool first = !std::exchange(open_, true);
  if (first) ++round_, moving_ = 0;
  moving_ |= uint64_t{1} << id;
  scaled_ = delayed_;
  if (seed_) {
    note_loss();
    loss_ = loss, first_ = first;
    return seed_;
  }
  const Tensor seed = Tensor::empty({}, DType::f32, device());
  if constexpr (kCudaBuild) {
    if (device().is_cuda()) {
      begin_backward_cuda(states_, count_, id, first, loss, seed);
      return seed;
    }
  }
  *seed.data<float>() = optim::begin_backward(states_cpu(), count_, id, first, all_finite(loss));
  return seed;
}

void LossScaler::unscale(int id, std::span<const Var> params, std::span<const Tensor> before) {
  note_loss();
  std::vector<Tensor> grads, sums;
  std::vector<int> indices;
  for (size_t i = 0; i < params.size(); ++i) {
    Tensor& slot = params[i].grad_slot();
    const Tensor old = i < before.size() ? before[i] : Tensor();
    params[i].state()->grad_scaled = false;
    if (!slot.defined()) {
      slot = old;
      continue;
    }
    const Tensor sum =
        old ? (is_half(old.dtype()) ? old.to(DType::f32) : old)
            : Tensor::zeros(slot.shape(), slot.dtype() == DType::f64 ? DType::f64 : DType::f32, slot.device());
    check(sum.dtype() != DType::f32 || slot.dtype() != DType::f64, "amp: a gradient of parameter ", i,
          " changed its dtype to f64");
    grads.push_back(std::exchange(slot, sum));
    sums.push_back(sum);
    indices.push_back(static_cast<int>(i));
  }
  scaled_ = false;
  if constexpr (kCudaBuild) {
    if (device().is_cuda()) return unscale_cuda(states_, id, grads, sums, indices);
  }
  ScalerState& state = states_cpu()[id];
  const auto run = [&]<class A>(size_t k) {
    const A factor = static_cast<A>(1.0 / static_cast<double>(state.scale));
    for_blocks(grads[k].numel(), [&](int64_t at, int64_t n) {
      A buffer[kBlock];
      const A* g = load(grads[k], at, n, buffer);
      A* sum = sums[k].data<A>() + at;
      for (int64_t i = 0; i < n; ++i) sum[i] += g[i] * factor;
    });
  };
  for (size_t k = 0; k < grads.size(); ++k) {
    if (!all_finite(grads[k])) state.bad_gradient = 1, state.first_bad = std::max(state.first_bad, indices[k]);
    sums[k].dtype() == DType::f64 ? run.template operator()<double>(k) : run.template operator()<float>(k);
    sums[k].bump_version();
  }
}

void LossScaler::check_round(std::string_view optimizer, uint64_t last) const {
  check(round_ > 0, optimizer, ": step() before any amp.backward(loss): call it in place of loss.backward()");
  check(round_ != last, optimizer, ": step() twice after one amp.backward(loss), or after zero_grad(): call ",
        "amp.backward(loss), in place of loss.backward(), before each step()");
}

Scaling LossScaler::take() {
  open_ = false;
  return {states_, count_, scaled_, std::exchange(moving_, 0), options_, std::exchange(loss_, {}), seed_, first_};
}

void LossScaler::abandon() {
  open_ = scaled_ = false;
  moving_ = 0;
  loss_ = {};
}

std::string StepControl::cause(const StepRecord& r) const {
  if (r.last_bad_loss) return "the loss was not finite";
  const int bad = r.last_bad - first_index;
  const bool known = bad >= 0 && bad < static_cast<int>(keys.size());
  return str(known ? "the gradient of " + keys[static_cast<size_t>(bad)] : "a gradient",
             " was not finite at loss scale ", r.last_scale);
}

void StepControl::check_skips(const StepRecord& r) const {
  if (r.consecutive_skips < scaler->options().max_consecutive_skips) return;
  fail(optimizer, ": ", r.consecutive_skips, " steps in a row were skipped; the last because ", cause(r),
       r.last_bad_loss
           ? ": the model diverges. Lower the learning rate or clip the gradients"
           : ", with a finite loss. Let amp::examine find the op that overflows, and put it on the deny list");
}

BufferGuard::BufferGuard(std::span<const Var> buffers) {
  for (const Var& b : buffers) entries_.push_back({b, b.value(), b.value().clone(), b.value().version()});
}

bool BufferGuard::refresh() {
  if (!std::exchange(settled_, false)) return false;
  for (Entry& e : entries_) {
    const Tensor& now = e.buffer.value();
    if (!now.same_storage(e.value)) {
      e.value = now;
      e.snapshot = now.clone();
    } else if (now.version() != e.version) {
      e.snapshot.copy_(now);
    }
    e.version = now.version();
  }
  return true;
}

std::span<const BufferGuard::Entry> BufferGuard::settle() {
  for (Entry& e : entries_) {
    if (!e.buffer.value().same_storage(e.value)) {  // moved between forward and step: nothing to go back to
      e.value = e.buffer.value();
      e.snapshot = e.value.clone();
    }
    e.value.bump_version();
    e.version = e.value.version();
  }
  settled_ = true;
  return entries_;
}

void BufferGuard::settle_cpu(bool skipped) {
  for (const Entry& e : settle()) {
    const Tensor &from = skipped ? e.snapshot : e.value, &to = skipped ? e.value : e.snapshot;
    std::copy_n(static_cast<const char*>(from.data()), from.bytes(), static_cast<char*>(to.data()));
  }
}

}  // namespace ht::optim
