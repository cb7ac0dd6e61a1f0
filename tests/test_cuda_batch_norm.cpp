// Batch norm in one kernel, where the device's shared memory holds the batch, against the CPU; and its neighbours that
// do not fit.
#include <doctest/doctest.h>

#include "core/build.h"
#include "ops/batch_norm.h"
#include "ops/ops.h"
#include "ops/registry.h"
#include "ops/samples.h"
#include "tests/cuda_compare.h"

using namespace ht;

namespace {
// Clusters of 1, 2, 4 and 8 blocks; rows that do not divide among them; one window a map; threads with many rows.
const std::vector<Shape> kFit{{7, 6, 4, 32}, {2, 16, 16, 64}, {33, 4, 4, 512}, {128, 4096},    {3, 2, 2, 32},
                              {37, 160},     {12, 8, 8, 256}, {2, 32},         {5, 14, 10, 96}};

bool is_resident(const Shape& shape, DType dtype, BatchNormTail tail) {
  if constexpr (kCudaBuild)
    return batch_norm_is_resident_cuda(Context::of(Device::cuda()), Tensor::empty(shape, dtype, Device::cuda()), tail);
  return false;
}

struct Form {
  const OpInfo& op;
  BatchNormTail tail;
  Var (*function)(const Var&, const Var&, const Var&, const RunningStats&, const BatchNormOptions&);
};
const std::vector<Form> kForms{{batch_norm_info, {}, batch_norm},
                               {bn_relu_info, {.relu = true}, bn_relu},
                               {bn_relu_pool_info, {.relu = true, .pool = true}, bn_relu_pool}};

void compare(DType dtype, double bound) {
  HT_NEEDS_CUDA();
  for (const Form& form : kForms)
    for (const Shape& shape : kFit) {
      if (form.tail.pool && shape.rank() != 4) continue;
      INFO(form.op.name << " " << str(shape) << " " << name_of(dtype));
      CHECK(is_resident(shape, dtype, form.tail));
      const Shape c{shape.back()};
      Sample s{"", {sample_uniform(shape, 1, -1, 3), sample_signed(c, 2, 0.5, 2), sample_uniform(c, 3, -1, 1)}, {}};
      // A large eps where there are few values: xhat of two values is otherwise nearly constant.
      const BatchNormOptions options{.eps = shape[0] * shape[1] < 70 ? 0.1 : 1e-5};
      s.function = [&](std::span<const Var> v) { return form.function(v[0], v[1], v[2], {}, options); };
      compare_with_cpu(form.op, s, dtype, bound);
    }
}
}  // namespace

TEST_CASE("cuda batch norm in one kernel: f32") { compare(DType::f32, 1e-5); }
TEST_CASE("cuda batch norm in one kernel: f16") { compare(DType::f16, 2e-3); }
TEST_CASE("cuda batch norm in one kernel: bf16") { compare(DType::bf16, 2e-2); }

TEST_CASE("cuda batch norm: what does not fit one kernel") {
  HT_NEEDS_CUDA();
  CHECK(!is_resident({4, 5, 4, 32}, DType::f16, {.relu = true, .pool = true}));  // windows over the edge
  CHECK(!is_resident({8, 24}, DType::f16, {}));                                  // a group with a pack too few
  CHECK(!is_resident({8, 32}, DType::f64, {}));
  CHECK(!is_resident({128, 32, 32, 64}, DType::f16, {}));
}

TEST_CASE("cuda batch norm in one kernel: running statistics, and a batch that is not finite in one channel") {
  HT_NEEDS_CUDA();
  const Shape shape{9, 4, 4, 64}, c{64};
  for (const float wrong : {INFINITY, NAN}) {
    const auto run = [&](DType dtype, Device device) {
      const no_grad guard;
      const RunningStats running{sample_uniform(c, 5, -1, 1).to(dtype).to(device),
                                 sample_uniform(c, 6, 0.5, 2).to(dtype).to(device),
                                 Tensor::zeros({1}, DType::i64, device)};
      const auto step = [&](const Tensor& x) {
        bn_relu(x.to(dtype).to(device), Tensor::full(c, 1, dtype, device), Tensor::zeros(c, dtype, device), running,
                {.momentum = 0.25});
      };
      step(sample_uniform(shape, 1, -1, 3));
      const std::vector<double> before = running.mean.to_vector();
      Tensor bad = sample_uniform(shape, 2, -1, 3).to(DType::f32);
      bad.data<float>()[100 * 64 + 37] = wrong;
      step(bad);
      CHECK(running.mean.to_vector() == before);
      step(sample_uniform(shape, 3, -1, 3));
      CHECK(running.num_batches_tracked.to(Device::cpu()).item() == 3);
      return std::vector{running.mean.to(Device::cpu()), running.var.to(Device::cpu())};
    };
    CHECK(is_resident(shape, DType::f32, {.relu = true}));
    const auto found = run(DType::f32, Device::cuda()), expected = run(DType::f32, Device::cpu());
    for (size_t i = 0; i < 2; ++i) CHECK(distance(found[i], expected[i], 0) <= 1e-6);
  }
}
