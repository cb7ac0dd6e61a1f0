#include "ops/registry.h"

namespace ht {

namespace {
std::vector<const OpInfo*>& user_ops() {
  static std::vector<const OpInfo*> table;
  return table;
}
}  // namespace

std::vector<const OpInfo*> all_ops() {
  std::vector<const OpInfo*> ops = {
#define HT_ENTRY(op) &op##_info,
      HT_OPS(HT_ENTRY)
#undef HT_ENTRY
  };
  ops.insert(ops.end(), user_ops().begin(), user_ops().end());
  return ops;
}

const OpInfo& find_op(std::string_view name) {
  for (const OpInfo* op : all_ops())
    if (op->name == name) return *op;
  fail("ops: '", name, "' is unknown; `halftone ops` lists them all");
}

void register_op(const OpInfo& info) {
  check(!info.name.empty(), "register_op: the op has no name");
  for (const OpInfo* known : all_ops()) check(known->name != info.name, "register_op: '", info.name, "' is taken");
  user_ops().push_back(&info);
}

}  // namespace ht
