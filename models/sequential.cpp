#include "models/sequential.h"

#include "models/fusion.h"

namespace ht::nn {

Var Sequential::forward(const Var& x) {
  Var y = x;
  for (Layers rest = children(); !rest.empty();) {
    auto [out, count] = run_first(rest, y);
    y = std::move(out);
    rest = rest.subspan(count);
  }
  return y;
}

Module& Sequential::operator[](size_t i) const {
  check(i < size(), "Sequential: child ", i, " of ", size());
  return *children()[i].second;
}

void Sequential::erase(size_t i) {
  check(i < size(), "Sequential: child ", i, " of ", size());
  remove_child(i);
}

Module& Sequential::operator[](std::string_view name) const {
  for (const auto& [known, child] : children())
    if (known == name) return *child;
  fail("Sequential: no child is named '", name, "'");
}

std::string Sequential::describe() const {
  if (size() == 0) return "Sequential()";
  std::string text = "Sequential(";
  for (const auto& [name, child] : children()) {
    text += "\n  (" + name + "): ";
    for (const char c : child->describe()) text += c == '\n' ? "\n  " : std::string(1, c);
  }
  return text + "\n)";
}

std::string Sequential::free_name(std::string name) const {
  if (name.empty()) name = std::to_string(size());
  check(name.find('.') == std::string::npos, "Sequential: the name '", name, "' has a dot");
  for (const auto& [known, child] : children()) check(known != name, "Sequential: the name '", name, "' is taken");
  return name;
}

}  // namespace ht::nn
