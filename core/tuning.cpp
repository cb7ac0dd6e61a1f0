#include "core/tuning.h"

#include <atomic>

namespace ht {

namespace {
std::atomic<bool> allow_tf32{false};
std::atomic<size_t> workspace_cap{size_t{1} << 30};
}  // namespace

void set_tf32(bool on) { allow_tf32 = on; }
bool tf32() { return allow_tf32; }
void set_workspace_limit(size_t bytes) { workspace_cap = bytes; }
size_t workspace_limit() { return workspace_cap; }

}  // namespace ht
