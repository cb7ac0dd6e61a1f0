// Initialisation of weights in place, with PyTorch's names and formulas. Weights are [out, in] or [out, kh, kw, in].
// Each call draws one Philox stream from this thread's CPU generator (ht::manual_seed), so that the same seed and the
// same order of construction give the same numbers on every machine, thread count and device.
#pragma once

#include "autograd/module.h"

namespace ht::nn {

// Connections of one unit: in = numel / out, out = out * kh * kw. Throws Error below rank 2.
int64_t fan_in(const Tensor& weight);
int64_t fan_out(const Tensor& weight);

void uniform_(const Tensor& t, double low = 0, double high = 1);
void normal_(const Tensor& t, double mean = 0, double std = 1);

enum class Fan : uint8_t { in, out };
struct KaimingOptions {
  Fan fan = Fan::in;  // in keeps the scale of activations, out that of gradients
  double a = 0;       // slope of the leaky ReLU that follows; 0 for ReLU
};
// He et al., "Delving deep into rectifiers" (2015): std = sqrt(2 / (1 + a^2) / fan); the uniform bound is sqrt(3) std.
void kaiming_normal_(const Tensor& weight, const KaimingOptions& options = {});
void kaiming_uniform_(const Tensor& weight, const KaimingOptions& options = {});
// The identity as far as it goes: 1 at the centre of kernel [i, ., ., i] for i < min(out, in), 0 elsewhere (PyTorch's
// dirac_; weights of rank 2, too).
void dirac_(const Tensor& weight);
// kaiming_normal_ with Fan::out of every weight of rank 2 and above but the last, which no ReLU follows.
void kaiming_fan_out_(const Module& model);
// The same, then dirac_ of the first min(out, in) kernels of each of those weights: every layer begins by passing its
// input on, and a deep network without shortcuts learns from the first steps (Zagoruyko and Komodakis, "DiracNets",
// 2017).
void kaiming_dirac_(const Module& model);
// Glorot and Bengio (2010): std = gain sqrt(2 / (fan_in + fan_out)).
void xavier_normal_(const Tensor& weight, double gain = 1);
void xavier_uniform_(const Tensor& weight, double gain = 1);

}  // namespace ht::nn
