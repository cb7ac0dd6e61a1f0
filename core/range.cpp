#include "core/range.h"

#include <utility>

#if defined(HT_CUDA) && defined(HT_NVTX)
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#endif

namespace ht {

namespace {
thread_local RangeObserver* current = nullptr;

#if defined(HT_CUDA) && defined(HT_NVTX)
nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t handle = nvtxDomainCreateA("halftone");
  return handle;
}

void push_nvtx(std::string_view name, std::string_view phase) {
  char text[96];
  std::snprintf(text, sizeof text, "%.*s%s%.*s", static_cast<int>(name.size()), name.data(), phase.empty() ? "" : " ",
                static_cast<int>(phase.size()), phase.data());
  nvtxEventAttributes_t event{};
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  event.messageType = NVTX_MESSAGE_TYPE_ASCII;
  event.message.ascii = text;
  nvtxDomainRangePushEx(domain(), &event);
}
void pop_nvtx() { nvtxDomainRangePop(domain()); }
#else
void push_nvtx(std::string_view, std::string_view) {}
void pop_nvtx() {}
#endif
}  // namespace

RangeObserver* set_range_observer(RangeObserver* observer) { return std::exchange(current, observer); }

Range::Range(std::string_view name, std::string_view phase, const void* id) : observer_(current) {
  push_nvtx(name, phase);
  if (observer_) observer_->begin(name, phase, id);
}

Range::~Range() {
  if (observer_) observer_->end();
  pop_nvtx();
}

void Range::touches(std::span<const Tensor> tensors) const {
  if (observer_) observer_->touches(tensors);
}

}  // namespace ht
