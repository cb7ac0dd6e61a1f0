#include "amp/policy.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

namespace ht::amp {

namespace {
constexpr AmpTag kTags[] = {AmpTag::allow, AmpTag::deny, AmpTag::promote, AmpTag::leave, AmpTag::forbid};

// Insertions, deletions and replacements between two words (Levenshtein).
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

// " Did you mean log, exp?", nearest first; nothing when no name is near.
std::string near_names(std::string_view name) {
  std::vector<std::pair<size_t, std::string_view>> near;
  for (const OpInfo* op : all_ops()) {
    const bool part = name.size() > 2 && (op->name.starts_with(name) || name.starts_with(op->name));
    if (const size_t d = part ? 1 : distance(name, op->name); d <= std::max<size_t>(1, name.size() / 3))
      near.emplace_back(d, op->name);
  }
  std::stable_sort(near.begin(), near.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::string text;
  for (size_t i = 0; i < near.size() && i < 3; ++i) text += str(i ? ", " : " Did you mean ", near[i].second);
  return near.empty() ? text : text + "?";
}
}  // namespace

AmpTag parse_tag(std::string_view name) {
  for (const AmpTag tag : kTags)
    if (name_of(tag) == name) return tag;
  fail("amp: the tag '", name, "' is unknown; use allow, deny, promote, leave or forbid");
}

void Policy::set(std::string_view op, AmpTag tag, std::string reason) {
  const auto known = all_ops();
  check(std::any_of(known.begin(), known.end(), [&](const OpInfo* info) { return info->name == op; }),
        "amp policy: there is no op '", op, "'; `halftone ops` lists them, register_op adds your own.", near_names(op));
  check(op != "cast", "amp policy: 'cast' is what casts are made of and has no rule");
  rules_.insert_or_assign(std::string(op), Rule{tag, std::move(reason)});
}

void Policy::load(const std::string& path) {
  std::ifstream file(path);
  check(file.is_open(), "amp policy: cannot read '", path, "'");
  Policy loaded = *this;
  try {
    const auto json = nlohmann::json::parse(file);
    check(json.is_object(), "it must be one object, {\"<op>\": \"<tag>\", ...}");
    for (const auto& [op, entry] : json.items()) {
      const bool plain = entry.is_string();
      check(plain || (entry.is_object() && entry.contains("tag") && entry["tag"].is_string()), "the entry of '", op,
            "' must be a tag or {\"tag\": ..., \"reason\": ...}");
      const auto tag = plain ? entry.get<std::string>() : entry["tag"].get<std::string>();
      loaded.set(op, parse_tag(tag), plain ? "set by " + path : entry.value("reason", "set by " + path));
    }
  } catch (const nlohmann::json::exception& e) {
    fail("amp policy '", path, "': ", e.what());
  } catch (const Error& e) {
    fail("amp policy '", path, "': ", e.what());
  }
  *this = std::move(loaded);
}

Rule Policy::rule(const OpInfo& op) const {
  const auto it = rules_.find(op.name);
  return it != rules_.end() ? it->second : Rule{op.tag, std::string(op.reason)};
}

AmpTag Policy::tag(const OpInfo& op) const {
  const auto it = rules_.find(op.name);
  return it != rules_.end() ? it->second.tag : op.tag;
}

std::vector<std::string> Policy::names(AmpTag tag) const {
  std::vector<std::string> names;
  for (const OpInfo* op : all_ops())
    if (this->tag(*op) == tag) names.emplace_back(op->name);
  return names;
}

}  // namespace ht::amp
