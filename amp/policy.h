// What autocast does to each op's inputs: the tags of the registry, with the user's changes on top.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ops/registry.h"

namespace ht::amp {

// "allow", ...; throws Error that lists them on another word.
AmpTag parse_tag(std::string_view name);

struct Rule {
  AmpTag tag = AmpTag::leave;
  std::string reason;
};

class Policy {
 public:
  // Replaces an op's rule. Throws Error on a name that all_ops() does not have, with the names that look like it, and
  // for `cast`, which is what the casts are made of.
  void set(std::string_view op, AmpTag tag, std::string reason = "set by the user");
  // Reads {"softmax": "allow", "add": {"tag": "deny", "reason": "sums drift"}, ...}. Throws Error naming the file, and
  // changes nothing, on one that cannot be read or an entry that set() would refuse.
  void load(const std::string& path);

  // The user's rule, else the op's own. An op that is not in the registry has its own, too.
  Rule rule(const OpInfo& op) const;
  AmpTag tag(const OpInfo& op) const;  // of that rule, without copying its reason
  bool overrides(std::string_view op) const { return rules_.contains(op); }
  bool empty() const { return rules_.empty(); }
  // The ops of a list, in the registry's order.
  std::vector<std::string> names(AmpTag tag) const;

 private:
  std::map<std::string, Rule, std::less<>> rules_;
};

}  // namespace ht::amp
