// Checks an analytic gradient against central differences.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "autograd/var.h"

namespace ht {

struct GradcheckOptions {
  double eps = 1e-5;   // half the step of the difference
  double rtol = 1e-6;  // allowed |analytic - numeric| <= atol + rtol * max(|analytic|, |numeric|)
  double atol = 1e-8;
  uint64_t seed = 7;           // of the random projection
  int64_t max_elements = 200;  // per input; larger inputs are sampled at that many places
};

struct GradcheckResult {
  bool ok = true;
  double worst = 0;     // largest relative error seen
  std::string message;  // on failure: op, input, index, analytic, numeric, relative error
  explicit operator bool() const { return ok; }
};

// Projects f's output on random weights, runs backward with every new buffer poisoned with NaN, checks that a second
// backward accumulates exactly twice the gradient, and compares each element with (L(x+eps) - L(x-eps)) / 2 eps. Inputs
// must be f64 on the CPU (throws Error otherwise); f must be a pure function of them.
GradcheckResult gradcheck(std::string_view op, const std::function<Var(std::span<const Var>)>& f,
                          std::span<const Tensor> inputs, const GradcheckOptions& options = {});

}  // namespace ht
