// Gradient clipping, between backward and step.
#pragma once

#include <span>

#include "autograd/var.h"

namespace ht::optim {

// Gradients that amp has scaled are an Error in both: Optimizer::set_clip clips them within the step.

// Multiplies all gradients by min(1, max_norm / (norm + 1e-6)), where norm is the L2 norm of all of them together, and
// returns the norm from before as a scalar f64 tensor on their device. As in PyTorch, a non-finite norm is returned,
// not hidden, and makes the gradients zero or NaN. An infinite max_norm only measures. Throws Error on a negative or
// NaN max_norm, or gradients on two devices.
Tensor clip_grad_norm_(std::span<const Var> params, double max_norm);
// Clamps every element to [-value, value]; NaN stays NaN. Throws Error on a negative or NaN value.
void clip_grad_value_(std::span<const Var> params, double value);

// Of all elements, in double. CPU.
double sum_of_squares(const Tensor& grad);

// The CUDA side (optim/clip.cu).
Tensor clip_grad_norm_cuda(std::span<const Tensor> grads, double max_norm);
void clip_grad_value_cuda(std::span<const Tensor> grads, double value);

}  // namespace ht::optim
