#include "core/tuning.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

#include "core/context.h"
#include "core/error.h"

namespace ht {

namespace {
std::atomic<bool> allow_tf32{false};
std::atomic<size_t> workspace_cap{size_t{1} << 30};
std::atomic<MemoryMode> memory{MemoryMode::speed};
std::atomic<TuneMode> asked_mode{TuneMode::fast};
constexpr std::array<std::string_view, 3> kModeNames{"off", "fast", "full"};

std::mutex choices_mutex;
std::vector<PlanChoice> choices;
}  // namespace

void set_tf32(bool on) { allow_tf32 = on; }
bool tf32() { return allow_tf32; }
void set_workspace_limit(size_t bytes) { workspace_cap = bytes; }
size_t workspace_limit() { return workspace_cap; }

void set_memory_mode(MemoryMode mode) { memory = mode; }
MemoryMode memory_mode() { return memory; }
std::string_view name_of(MemoryMode mode) { return mode == MemoryMode::low ? "low" : "speed"; }
MemoryMode parse_memory_mode(std::string_view text) {
  for (const MemoryMode mode : {MemoryMode::speed, MemoryMode::low})
    if (text == name_of(mode)) return mode;
  fail("memory: '", text, "' is unknown; use speed or low");
}

void set_tune_mode(TuneMode mode) { asked_mode = mode; }
TuneMode tune_mode() { return deterministic() ? TuneMode::off : asked_mode.load(); }
std::string_view name_of(TuneMode mode) { return kModeNames[static_cast<size_t>(mode)]; }

TuneMode parse_tune_mode(std::string_view text) {
  const auto it = std::find(kModeNames.begin(), kModeNames.end(), text);
  check(it != kModeNames.end(), "tune: '", text, "' is unknown; use off, fast or full");
  return static_cast<TuneMode>(it - kModeNames.begin());
}

std::vector<PlanChoice> plan_choices() {
  const std::lock_guard lock(choices_mutex);
  return choices;
}

void note_plan(PlanChoice choice) {
  const std::lock_guard lock(choices_mutex);
  const auto it = std::find_if(choices.begin(), choices.end(),
                               [&](const PlanChoice& known) { return known.problem == choice.problem; });
  if (it == choices.end()) {
    choices.push_back(std::move(choice));
  } else {
    *it = std::move(choice);
  }
}

}  // namespace ht
