// How the device libraries may work, and what they chose; no effect on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ht {

// TF32 for FP32 convolutions and matrix products; off by default, so that FP32 means FP32.
void set_tf32(bool on);
bool tf32();
// Largest workspace a plan may ask for, in bytes (default 1 GiB).
void set_workspace_limit(size_t bytes);
size_t workspace_limit();

// What backward needs is kept (speed) or, where an op can make its output again from what it keeps itself, made again
// (low): CUDA's batch norm and what is fused with it.
enum class MemoryMode : uint8_t { speed, low };
void set_memory_mode(MemoryMode mode);
MemoryMode memory_mode();
std::string_view name_of(MemoryMode mode);
MemoryMode parse_memory_mode(std::string_view text);  // "speed", "low"; throws Error otherwise

// How long to search for the fastest plan of a convolution or matrix product that is met for the first time: not at
// all (the first one that works), among a few candidates (the default), among all that the library offers.
enum class TuneMode : uint8_t { off, fast, full };
void set_tune_mode(TuneMode mode);
// Always off in deterministic mode: timing would choose another plan now and then.
TuneMode tune_mode();
std::string_view name_of(TuneMode mode);
TuneMode parse_tune_mode(std::string_view text);  // "off", "fast", "full"; throws Error otherwise

// The plan that a convolution or matrix product of this process runs by.
struct PlanChoice {
  std::string problem;  // op, shapes, dtypes
  std::string plan;     // the library's engine or algorithm with its settings
  bool tensor_cores = false;
};
// In the order of first use; a problem that was searched again stands once.
std::vector<PlanChoice> plan_choices();
void note_plan(PlanChoice choice);

}  // namespace ht
