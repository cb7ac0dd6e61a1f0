#include "autograd/op.h"

namespace ht {

namespace {
std::vector<const OpInfo*>& user_table() {
  static std::vector<const OpInfo*> table;
  return table;
}
}  // namespace

std::string_view name_of(AmpTag tag) {
  constexpr std::string_view names[] = {"allow", "deny", "promote", "leave", "forbid"};
  return names[static_cast<int>(tag)];
}

void register_op(const OpInfo& info) {
  for (const OpInfo* known : user_table()) check(known->name != info.name, "register_op: '", info.name, "' is taken");
  user_table().push_back(&info);
}

std::span<const OpInfo* const> user_ops() { return user_table(); }

}  // namespace ht
