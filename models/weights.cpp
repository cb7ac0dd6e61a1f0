#include "models/weights.h"

#include <algorithm>
#include <set>

#include "core/safetensors.h"

namespace ht::models {

namespace {
bool all_begin_with(const StateDict& state, std::string_view prefix) {
  return !state.empty() &&
         std::all_of(state.begin(), state.end(), [&](const auto& item) { return item.first.starts_with(prefix); });
}

// The part before "weight" of the only weight under "classifier."; empty when there are none or several.
std::string head_of(const StateDict& state) {
  std::set<std::string> heads;
  for (const auto& [name, tensor] : state)
    if (name.starts_with("classifier.") && name.ends_with(".weight")) heads.insert(name.substr(0, name.size() - 6));
  return heads.size() == 1 ? *heads.begin() : "";
}

// Renames every tensor that begins with `from`.
StateDict rename(const StateDict& state, const std::string& from, const std::string& to) {
  StateDict out;
  for (const auto& [name, tensor] : state) out[name.starts_with(from) ? to + name.substr(from.size()) : name] = tensor;
  return out;
}
}  // namespace

StateDict adapt_names(const StateDict& file, const Module& model) {
  const StateDict mine = model.state_dict();
  StateDict out = file;
  std::erase_if(out, [&](const auto& item) {
    const std::string& name = item.first;
    return !mine.contains(name) &&
           (name.starts_with("optimizer.") || name.starts_with("amp.") || name.starts_with("ema."));
  });
  for (bool again = true; again;) {
    again = false;
    for (const char* prefix : {"module.", "_orig_mod.", "model.", "net."}) {
      if (!all_begin_with(out, prefix) || all_begin_with(mine, prefix)) continue;
      out = rename(out, prefix, "");
      again = true;
    }
  }
  if (const std::string from = head_of(out), to = head_of(mine); !from.empty() && !to.empty())
    out = rename(out, from, to);
  for (const auto& [name, tensor] : mine)
    if (name.ends_with("num_batches_tracked")) out.try_emplace(name, tensor);
  return out;
}

void load_weights(Module& model, const std::string& path) {
  const StateDict state = adapt_names(SafeTensors(path).tensors(), model);
  try {
    model.load_state_dict(state);
  } catch (const Error& e) {
    fail("weights: '", path, "': ", e.what());
  }
}

}  // namespace ht::models
