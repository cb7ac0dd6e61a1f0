// Samples of ops on CUDA against the CPU.
#pragma once

#include <cmath>

#include "autograd/var.h"
#include "tests/cuda_test.h"

namespace ht {

struct Outcome {
  Tensor y;
  std::vector<Tensor> grads;
};

// The dtype of input k: those that the op keeps (batch norm's parameters) stay FP32 beside half data.
inline DType input_dtype(const OpInfo& op, size_t k, DType dtype) {
  return k < op.args.size() && op.args[k] == ArgTag::keep && is_half(dtype) ? DType::f32 : dtype;
}

// Runs a sample in `dtype` on a device; the seed of backward is the same everywhere, rounded to `seed_dtype`.
inline Outcome run_sample(const OpInfo& op, const Sample& s, DType dtype, DType seed_dtype, Device device) {
  std::vector<Var> in;
  for (size_t k = 0; k < s.inputs.size(); ++k)
    in.emplace_back(s.inputs[k].to(input_dtype(op, k, dtype)).to(device), true);
  const Var y = s.function(in);
  const Tensor seed = Tensor::uniform(y.shape(), {99, 1}, 0.5, 1.5, DType::f64).to(seed_dtype).to(y.dtype()).to(device);
  y.backward(seed);
  Outcome out{y.value().to(Device::cpu()), {}};
  for (const Var& v : in) out.grads.push_back(v.grad().defined() ? v.grad().to(Device::cpu()) : Tensor());
  return out;
}

// The inputs rounded to `dtype`, so that FP32 sees exactly the numbers that half saw.
inline Sample rounded(const OpInfo& op, const Sample& s, DType dtype) {
  Sample r = s;
  for (size_t k = 0; k < r.inputs.size(); ++k) r.inputs[k] = r.inputs[k].to(input_dtype(op, k, dtype)).to(DType::f64);
  return r;
}

inline double norm_of(const Tensor& t) {
  double squares = 0;
  for (const double v : t.to_vector()) squares += std::isnan(v) ? 0 : v * v;
  return std::sqrt(squares);
}

// ||a - b|| / max(||b||, floor), absolute where both are zero; infinite on a NaN that only one has.
inline double distance(const Tensor& a, const Tensor& b, double floor) {
  REQUIRE(a.shape() == b.shape());
  const std::vector<double> va = a.to_vector(), vb = b.to_vector();
  double difference = 0;
  for (size_t i = 0; i < va.size(); ++i) {
    if (std::isnan(va[i]) && std::isnan(vb[i])) continue;
    difference += (va[i] - vb[i]) * (va[i] - vb[i]);
  }
  if (std::isnan(difference)) return INFINITY;
  const double norm = std::max(norm_of(b), floor);
  return norm > 0 ? std::sqrt(difference) / norm : std::sqrt(difference);
}

// Runs a sample on CUDA in `dtype`, and on the CPU in f64 on the same rounded inputs; CHECKs that output and gradients
// lie within `bound` by relative L2 and gives the worst. Throws the Error of an op that refuses.
inline double compare_with_cpu(const OpInfo& op, const Sample& sample, DType dtype, double bound) {
  const Sample s = rounded(op, sample, dtype);
  const Outcome cuda = run_sample(op, s, dtype, dtype, Device::cuda());
  const Outcome exact = run_sample(op, s, DType::f64, dtype, Device::cpu());
  // A result that is nearly cancelled (a batch norm of two values) is measured against the sample's largest gradient,
  // and may be as wrong as the CPU is in the same arithmetic.
  double floor = 0, worst = 0;
  for (const Tensor& g : exact.grads)
    if (g.defined()) floor = std::max(floor, 0.05 * norm_of(g));
  const Outcome cpu = run_sample(op, s, is_half(dtype) ? DType::f32 : dtype, dtype, Device::cpu());
  const auto compare = [&](const Tensor& got, const Tensor& want, const Tensor& peer, const std::string& what) {
    const double error = distance(got, want, floor);
    const double allowed = std::max(bound, 3 * distance(peer, want, floor));
    CHECK_MESSAGE(error <= allowed, what, ": relative L2 ", error, ", allowed ", allowed);
    worst = std::max(worst, error);
  };
  compare(cuda.y, exact.y, cpu.y, "output");
  for (size_t k = 0; k < exact.grads.size(); ++k) {
    REQUIRE(cuda.grads[k].defined() == exact.grads[k].defined());
    if (exact.grads[k].defined()) compare(cuda.grads[k], exact.grads[k], cpu.grads[k], str("gradient of input ", k));
  }
  return worst;
}

}  // namespace ht
