// Inputs for gradcheck samples: float64, drawn from a fixed Philox stream.
#pragma once

#include "autograd/var.h"

namespace ht {

// Uniform in [low, high), or with both signs: the magnitude in [low, high) and the sign drawn too (keeps off a kink at
// 0).
Tensor sample_uniform(const Shape& shape, uint64_t stream, double low, double high);
Tensor sample_signed(const Shape& shape, uint64_t stream, double low, double high);

// The standard shapes for one-input pointwise ops, inputs as sample_signed (or sample_uniform when not `both_signs`).
std::vector<Sample> pointwise_samples(Var (*f)(const Var&), double low, double high, bool both_signs = true);

// The standard pairs of shapes for two-input ops with broadcasting, and one Var used as both operands.
std::vector<Sample> binary_samples(Var (*f)(const Var&, const Var&), double low, double high);

// The standard cases of ops along an axis of a floating input: first, middle and last axes, odd sizes, sizes of 1.
std::vector<Sample> axis_samples(Var (*f)(const Var&, int));

// Labels [n] i64, uniform in [0, classes).
Tensor sample_labels(int64_t n, int64_t classes, uint64_t stream);

}  // namespace ht
