// Which adjacent layers run as one fused op: one table, longest first (models/fusion.cpp).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "autograd/module.h"

namespace ht::nn {

using Layers = std::span<const std::pair<std::string, std::unique_ptr<Module>>>;

// Runs the first layers of `layers`, or the first one alone, on x and tells how many they were. A fused op is not used
// where the input hook overrides one of its parts (amp's per-op overrides).
std::pair<Var, size_t> run_first(Layers layers, const Var& x);

}  // namespace ht::nn
