#include "models/weights.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/safetensors.h"
#include "models/checkpoint.h"
#include "models/vgg.h"

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

constexpr const char* kEma = "ema.";

void load_from(Module& model, const SafeTensors& file, bool ema) {
  const StateDict tensors = file.tensors(ema ? kEma : "");
  check(!tensors.empty(), "weights: '", file.path(), "' has no averaged weights (", kEma,
        "*); leave out --ema, or train with it");
  try {
    model.load_state_dict(adapt_names(tensors, model));
  } catch (const Error& e) {
    fail("weights: '", file.path(), "': ", e.what());
  }
}

// The shapes of a VGG's weights in a file, in order of layers, whatever stands before their names.
struct VggShapes {
  std::vector<Shape> features, classifier;  // of rank 2 and 4: no norms
  bool batch_norm = false, bias = false;    // in the features
};

VggShapes vgg_shapes(const SafeTensors& file, bool ema) {
  const std::string first = "features.0.weight";
  std::string prefix;
  const auto& entries = file.entries();
  const bool found = std::any_of(entries.begin(), entries.end(), [&](const auto& item) {
    if (!item.first.ends_with(first) || item.first.starts_with(kEma) != ema) return false;
    prefix = item.first.substr(0, item.first.size() - first.size());
    return true;
  });
  check(found, "weights: '", file.path(), "' is of no VGG network: it has no ", ema ? kEma : "", first,
        "; halftone inspect lists what it has");
  VggShapes out;
  for (const auto& [name, entry] : entries) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view rest = std::string_view(name).substr(prefix.size());
    if (rest == "features.1.running_mean") out.batch_norm = true;
    if (rest == "features.0.bias") out.bias = true;
    if (!rest.ends_with("weight") || entry.spec.shape.rank() < 2) continue;
    if (rest.starts_with("features.")) out.features.push_back(entry.spec.shape);
    if (rest.starts_with("classifier.")) out.classifier.push_back(entry.spec.shape);
  }
  const bool whole = !out.features.empty() && !out.classifier.empty() &&
                     std::all_of(out.features.begin(), out.features.end(),
                                 [](auto& shape) { return shape.rank() == 4 && shape.numel() > 0; });
  check(whole, "weights: '", file.path(), "' is of no VGG network: its features are no convolutions or no classifier ",
        "follows; halftone inspect lists what it has");
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

void load_weights(Module& model, const std::string& path, bool ema) { load_from(model, SafeTensors(path), ema); }

LoadedNetwork load_network(const std::string& path, const NetworkOptions& options) {
  const SafeTensors file(path);
  const VggShapes shapes = vgg_shapes(file, options.ema);
  const NetworkFacts facts = network_facts(file);
  int64_t channels = 0;  // that leave the features
  for (const Shape& shape : shapes.features) channels = std::max(channels, shape[0]);
  const Shape &first = shapes.classifier.front(), &last = shapes.classifier.back();
  double width = options.width > 0 ? options.width : facts.width;
  if (width == 0) width = static_cast<double>(channels) / 512;

  LoadedNetwork out{.model = {}, .name = {}, .classes = last[0], .image = 32, .class_names = facts.class_names};
  try {
    if (!shapes.bias) {
      out.name = "vgg16";
      out.model = vgg16({.classes = out.classes, .width = width});
    } else {
      const double columns = static_cast<double>(first.numel() / std::max<int64_t>(first[0], 1));
      const auto side = std::llround(std::sqrt(columns / static_cast<double>(channels)));
      out.image = 32 * std::max<int64_t>(side, 1);
      VggOptions o{.depth = static_cast<int>(shapes.features.size()) + 3, .batch_norm = shapes.batch_norm};
      o.classes = out.classes, o.width = width, o.image = out.image;
      o.hidden = shapes.classifier.size() == 1 ? 0 : std::llround(static_cast<double>(first[0]) / width);
      out.name = str("vgg", o.depth, o.batch_norm ? "_bn" : "");
      out.model = vgg(o);
    }
  } catch (const Error& e) {
    fail("weights: '", path, "' is of no network that is known here: ", e.what());
  }
  if (width != 1) out.name += str(" width ", width);
  load_from(out.model, file, options.ema);
  return out;
}

}  // namespace ht::models
