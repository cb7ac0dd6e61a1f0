// CPU against CUDA: every registered op, every gradcheck sample, every dtype, forward and backward.
#include <doctest/doctest.h>

#include "ops/registry.h"
#include "tests/cuda_compare.h"

using namespace ht;

namespace {
void compare_all(DType dtype, double bound) {
  HT_NEEDS_CUDA();
  int compared = 0;
  for (const OpInfo* op : all_ops()) {
    double worst = 0;
    for (const Sample& sample : op->samples()) {
      INFO(op->name << " (" << sample.label << ") " << name_of(dtype));
      try {
        worst = std::max(worst, compare_with_cpu(*op, sample, dtype, bound));
        ++compared;
      } catch (const Error& e) {  // only a library's refusal of f64 may be missing
        const bool f64_refused = dtype == DType::f64 && std::string(e.what()).find("no plan") != std::string::npos;
        const bool forbidden = op->tag == AmpTag::forbid && is_half(dtype);
        CHECK_MESSAGE((f64_refused || forbidden), std::string(e.what()));
      }
    }
    MESSAGE(name_of(dtype), ' ', op->name, ": worst relative L2 ", worst);
  }
  CHECK(compared > 100);
}
}  // namespace

TEST_CASE("cuda ops: f64 against the CPU") { compare_all(DType::f64, 1e-10); }
TEST_CASE("cuda ops: f32 against the CPU") { compare_all(DType::f32, 1e-5); }
TEST_CASE("cuda ops: f16 against the CPU") { compare_all(DType::f16, 2e-3); }
TEST_CASE("cuda ops: bf16 against the CPU") { compare_all(DType::bf16, 2e-2); }
