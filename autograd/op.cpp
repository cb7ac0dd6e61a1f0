#include "autograd/op.h"

namespace ht {

std::string_view name_of(AmpTag tag) {
  constexpr std::string_view names[] = {"allow", "deny", "promote", "leave", "forbid"};
  return names[static_cast<int>(tag)];
}

}  // namespace ht
