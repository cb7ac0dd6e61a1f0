// CPU against CUDA: every registered op, every gradcheck sample, every dtype, forward and backward.
#include <doctest/doctest.h>

#include <cmath>

#include "ops/ops.h"
#include "ops/registry.h"
#include "tests/cuda_test.h"

using namespace ht;

namespace {
struct Outcome {
  Tensor y;
  std::vector<Tensor> grads;
};

// Runs a sample in `dtype` on a device; the seed of backward is the same everywhere.
Outcome run(const Sample& s, DType dtype, Device device) {
  std::vector<Var> in;
  for (const Tensor& t : s.inputs) in.emplace_back(t.to(dtype).to(device), true);
  const Var y = s.function(in);
  const Tensor seed = Tensor::uniform(y.shape(), {99, 1}, 0.5, 1.5, DType::f64).to(y.dtype()).to(device);
  y.backward(seed);
  Outcome out{y.value().to(Device::cpu()), {}};
  for (const Var& v : in) out.grads.push_back(v.grad().defined() ? v.grad().to(Device::cpu()) : Tensor());
  return out;
}

// The inputs rounded to `dtype`, so that FP32 sees exactly the numbers that half saw.
Sample rounded(const Sample& s, DType dtype) {
  Sample r = s;
  for (Tensor& t : r.inputs) t = t.to(dtype).to(DType::f64);
  return r;
}

// ||a - b|| / ||b||, absolute where b is zero; infinite on a NaN that only one has.
double distance(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  const std::vector<double> va = a.to_vector(), vb = b.to_vector();
  double difference = 0, norm = 0;
  for (size_t i = 0; i < va.size(); ++i) {
    if (std::isnan(va[i]) && std::isnan(vb[i])) continue;
    difference += (va[i] - vb[i]) * (va[i] - vb[i]);
    norm += vb[i] * vb[i];
  }
  if (std::isnan(difference)) return INFINITY;
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

void compare_all(DType dtype, DType reference, double bound) {
  HT_NEEDS_CUDA();
  int compared = 0;
  for (const OpInfo* op : all_ops()) {
    double worst = 0;
    for (const Sample& sample : op->samples()) {
      INFO(op->name << " (" << sample.label << ") " << name_of(dtype));
      const Sample s = rounded(sample, dtype);
      Outcome cuda;
      try {
        cuda = run(s, dtype, Device::cuda());
      } catch (const Error& e) {  // only a library's refusal of f64 may be missing
        const bool f64_refused = dtype == DType::f64 && std::string(e.what()).find("no plan") != std::string::npos;
        const bool forbidden = op->tag == AmpTag::forbid && is_half(dtype);
        CHECK_MESSAGE((f64_refused || forbidden), e.what());
        continue;
      }
      const Outcome cpu = run(s, reference, Device::cpu());
      const double forward = distance(cuda.y, cpu.y);
      CHECK(forward <= bound);
      worst = std::max(worst, forward);
      REQUIRE(cuda.grads.size() == cpu.grads.size());
      for (size_t k = 0; k < cpu.grads.size(); ++k) {
        REQUIRE(cuda.grads[k].defined() == cpu.grads[k].defined());
        if (!cpu.grads[k].defined()) continue;
        const double backward = distance(cuda.grads[k], cpu.grads[k]);
        CHECK_MESSAGE(backward <= bound, "gradient of input ", k, ": ", backward);
        worst = std::max(worst, backward);
      }
      ++compared;
    }
    MESSAGE(name_of(dtype), ' ', op->name, ": worst relative L2 ", worst);
  }
  CHECK(compared > 100);
}
}  // namespace

TEST_CASE("cuda ops: f64 against the CPU") { compare_all(DType::f64, DType::f64, 1e-10); }
TEST_CASE("cuda ops: f32 against the CPU") { compare_all(DType::f32, DType::f32, 1e-5); }
TEST_CASE("cuda ops: f16 against f32 on the CPU") { compare_all(DType::f16, DType::f32, 2e-3); }
TEST_CASE("cuda ops: bf16 against f32 on the CPU") { compare_all(DType::bf16, DType::f32, 2e-2); }
