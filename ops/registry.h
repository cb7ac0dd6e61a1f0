// The explicit table of built-in ops. No static initialisers: a static library's linker would drop them silently.
#pragma once

#include <string_view>
#include <vector>

#include "autograd/op.h"

// One line an op, in alphabetical order; its OpInfo is `<op>_info` in ops/<op>.cpp.
// clang-format off
#define HT_OPS(X) \
  X(abs) \
  X(add) \
  X(avg_pool2d) \
  X(batch_norm) \
  X(binary_cross_entropy) \
  X(binary_cross_entropy_with_logits) \
  X(bn_relu) \
  X(bn_relu_pool) \
  X(cast) \
  X(cat) \
  X(clamp) \
  X(conv2d) \
  X(conv_bn_relu) \
  X(conv_bn_relu_pool) \
  X(cross_entropy) \
  X(div) \
  X(dropout) \
  X(exp) \
  X(flatten) \
  X(gelu) \
  X(global_avg_pool2d) \
  X(l1_loss) \
  X(linear) \
  X(log) \
  X(log_softmax) \
  X(matmul) \
  X(max_pool2d) \
  X(mean) \
  X(mse_loss) \
  X(mul) \
  X(neg) \
  X(nll_loss) \
  X(norm) \
  X(pow) \
  X(reciprocal) \
  X(relu) \
  X(reshape) \
  X(rsqrt) \
  X(scale) \
  X(sigmoid) \
  X(slice) \
  X(smooth_l1_loss) \
  X(softmax) \
  X(sqrt) \
  X(sub) \
  X(sum) \
  X(tanh) \
  X(transpose) \
  X(var)
// clang-format on

namespace ht {

#define HT_DECLARE(op) extern const OpInfo op##_info;
HT_OPS(HT_DECLARE)
#undef HT_DECLARE

// Built-in ops in alphabetical order, then those of register_op.
std::vector<const OpInfo*> all_ops();
// Throws Error on an unknown name.
const OpInfo& find_op(std::string_view name);
// Adds a user's op to the table, so that amp and the tools know it by name. `info` must outlive every use of the table.
// Throws Error when the name is taken.
void register_op(const OpInfo& info);

}  // namespace ht
