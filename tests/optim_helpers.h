// What the tests of optimizers share: parameters, gradients and trainings with known numbers.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>

#include "optim/clip.h"
#include "optim/optimizer.h"
#include "optim/sgd.h"
#include "tests/error_of.h"

namespace ht::optim {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInf = std::numeric_limits<double>::infinity();

inline Var parameter(std::initializer_list<double> values, DType dtype = DType::f32) {
  return Var(Tensor::from(values, {static_cast<int64_t>(values.size())}, dtype), true);
}

inline void set_grad(const Var& p, std::initializer_list<double> values, DType dtype = DType::f32) {
  p.grad_slot() = Tensor::from(values, p.shape(), dtype);
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() && std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

// The start and the gradients of the script that made the PyTorch numbers: exact in every dtype but bf16.
inline Var start(DType dtype) {
  std::vector<double> v;
  for (int i = 0; i < 5; ++i) v.push_back(((i * 37) % 64 - 32) / 16.0);
  return Var(Tensor::from(v, {5}, dtype), true);
}
inline Tensor gradient(int t, DType dtype) {
  std::vector<double> v;
  for (int i = 0; i < 5; ++i) v.push_back(((i * 29 + t * 53) % 97 - 48) / 64.0);
  return Tensor::from(v, {5}, dtype);
}

enum class Clip { none, norm, value };

template <class O>
void train(O& optimizer, const Var& p, DType grad_dtype, int from = 0, int to = 20, Clip clip = Clip::none) {
  for (int t = from; t < to; ++t) {
    optimizer.zero_grad();
    p.grad_slot() = gradient(t, grad_dtype);
    const std::vector<Var> params{p};
    if (clip == Clip::norm) clip_grad_norm_(params, 0.5);
    if (clip == Clip::value) clip_grad_value_(params, 0.25);
    optimizer.step();
  }
}

inline void check_close(const Var& p, std::initializer_list<double> expected, double tolerance) {
  int64_t i = 0;
  for (const double e : expected) {
    INFO("element ", i);
    CHECK(std::abs(p.value().at(i++) - e) <= tolerance * std::max(1.0, std::abs(e)));
  }
}

inline void check_sgd(const SgdOptions& o, std::initializer_list<double> expected, DType dtype = DType::f32,
                      Clip clip = Clip::none) {
  const Var p = start(dtype);
  Sgd sgd({p}, o);
  train(sgd, p, dtype, 0, 20, clip);
  check_close(p, expected, dtype == DType::f64 ? 1e-14 : 1e-6);
}

}  // namespace ht::optim
