#include "ops/registry.h"

namespace ht {

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

}  // namespace ht
