#include "models/step_log.h"

#include "core/build.h"

namespace ht::models {

int64_t count_correct(const Tensor& logits, const Tensor& labels) {
  const Tensor x = logits.to(Device::cpu()), y = labels.to(Device::cpu()).to(DType::i64);
  const int64_t n = x.dim(0), classes = x.dim(1);
  int64_t correct = 0;
  dispatch_floating(x.dtype(), "count_correct", [&]<class T>() {
    const T* row = x.data<T>();
    for (int64_t i = 0; i < n; ++i, row += classes) correct += is_correct(row, classes, y.data<int64_t>()[i]);
  });
  return correct;
}

StepLog::StepLog(Device device) : ring_(Tensor::zeros({int64_t{sizeof(StepRing)}}, DType::u8, device)) {}

void StepLog::record(const Tensor& loss, const Tensor& logits, const Tensor& labels, const optim::Rate& rate) {
  check(loss.numel() == 1 && logits.rank() == 2 && logits.dim(1) > 0 && labels.shape() == Shape{logits.dim(0)} &&
            is_floating(loss.dtype()) && !is_floating(labels.dtype()),
        "step log: needs a loss of one element, logits [n, classes] and a label a row (", Named{"loss", loss}, ", ",
        Named{"logits", logits}, ", ", Named{"labels", labels}, ")");
  check(loss.device() == ring_.device() && logits.device() == ring_.device() && labels.device() == ring_.device(),
        "step log: it is on ", ring_.device(), ", what it shall keep is not (", Named{"loss", loss}, ", ",
        Named{"logits", logits}, ", ", Named{"labels", labels}, ")");
  ring_.bump_version();
  if constexpr (kCudaBuild) {
    if (ring_.device().is_cuda())
      return record_step_cuda(ring_, loss, logits, labels.dtype() == DType::i32 ? labels : labels.to(DType::i64), rate);
  }
  auto& ring = *reinterpret_cast<StepRing*>(ring_.data<uint8_t>());
  ring.slots[ring.count++ % kSlots] = {loss.item(), rate.values ? rate.now() : 0, count_correct(logits, labels),
                                       logits.dim(0)};
}

std::vector<StepEntry> StepLog::read() { return read(ring_.to(Device::cpu())); }

std::vector<StepEntry> StepLog::read(const Tensor& copy) {
  const auto ring = optim::read_struct<StepRing>(copy);
  check(ring.count - read_ <= kSlots, "step log: ", ring.count - read_, " steps were recorded since the last read, it ",
        "keeps ", kSlots, "; read it more often");
  std::vector<StepEntry> entries;
  for (; read_ < ring.count; ++read_) entries.push_back(ring.slots[read_ % kSlots]);
  return entries;
}

}  // namespace ht::models
