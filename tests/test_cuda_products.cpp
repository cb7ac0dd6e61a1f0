// Matrix products by kernels of ours on CUDA, each of their plans, against sums in f64.
#include <doctest/doctest.h>

#include <cmath>

#include "core/build.h"
#include "core/small_gemm.h"
#include "ops/gemm.h"
#include "tests/cuda_compare.h"

using namespace ht;

namespace {
struct Size {
  int64_t m, n, k;
};

// A product of random numbers, without and with a bias, and the sums of op(A)'s rows, each in f64 too.
struct Product {
  Product(const Size& size, bool trans_a, bool trans_b, DType dtype) {
    p = {.m = size.m, .n = size.n, .k = size.k, .trans_a = trans_a, .trans_b = trans_b, .dtype = dtype};
    const auto draw = [&](const Shape& shape, uint64_t stream) {
      return Tensor::uniform(shape, {21, stream}, -1, 1, DType::f64).to(dtype);
    };
    a = draw(trans_a ? Shape{p.k, p.m} : Shape{p.m, p.k}, 1), b = draw(trans_b ? Shape{p.n, p.k} : Shape{p.k, p.n}, 2);
    bias = draw({p.n}, 3);
    plain = Tensor::empty({p.m, p.n}, DType::f64), biased = Tensor::empty({p.m, p.n}, DType::f64);
    sums = Tensor::zeros({p.m}, DType::f64);
    const Tensor a64 = a.to(DType::f64), bias64 = bias.to(DType::f64);
    gemm(Context::of(Device::cpu()), {p.m, p.n, p.k, trans_a, trans_b}, a64, b.to(DType::f64), plain);
    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = 0; j < p.n; ++j)
        biased.data<double>()[i * p.n + j] = plain.data<double>()[i * p.n + j] + bias64.data<double>()[j];
      for (int64_t j = 0; j < p.k; ++j)
        sums.data<double>()[i] += a64.data<double>()[trans_a ? j * p.m + i : i * p.k + j];
    }
    a = a.to(Device::cuda()), b = b.to(Device::cuda()), bias = bias.to(Device::cuda());
  }

  GemmProblem p;
  Tensor a, b, bias;  // on the device
  Tensor plain, biased, sums;
};

double bound_of(DType in, DType out) {
  return out == DType::f16 ? 1e-3 : out == DType::bf16 ? 1e-2 : in == DType::f32 ? 1e-6 : 1e-5;
}

// Every plan for C of dtype `out`; on both lanes, the same bits, or only on the main one.
void check_plans(const Product& product, DType out, bool with_bias, bool with_sums, bool both_lanes) {
  if constexpr (kCudaBuild) {
    CudaContext& cuda = Context::of(Device::cuda()).cuda();
    GemmProblem p = product.p;
    p.out = out, p.bias = with_bias, p.row_sums = with_sums;
    const Tensor bias = product.bias.to(out);  // exactly, as it was drawn in half
    const Tensor c = Tensor::empty({p.m, p.n}, out, Device::cuda()),
                 sums = Tensor::empty({p.m}, p.dtype, Device::cuda());
    const GemmOperands at{product.a.data(), product.b.data(), with_bias ? bias.data() : nullptr, c.data(),
                          with_sums ? sums.data() : nullptr};
    const auto plans = small_gemm_plans(cuda, p, at);
    REQUIRE(!plans.empty());
    for (const SmallGemmPlan& plan : plans) {
      INFO(p.m, 'x', p.n, 'x', p.k, ' ', p.dtype, "->", p.out, " transposed ", p.trans_a, p.trans_b, " bias ", p.bias,
           " sums ", p.row_sums, " tile ", plan.tile, " blocks ", plan.blocks);
      std::vector<double> first;
      for (CudaLane* lane : {&cuda.main, &cuda.side}) {
        if (lane == &cuda.side && !both_lanes) continue;
        c.fill_(NAN);
        if (with_sums) sums.fill_(NAN);
        cuda.order(cuda.main, *lane);
        small_gemm(cuda, *lane, p, plan, at);
        cuda.order(*lane, cuda.main);
        const Tensor found = c.to(Device::cpu());
        CHECK(distance(found, with_bias ? product.biased : product.plain, 0) <= bound_of(p.dtype, out));
        if (with_sums) CHECK(distance(sums.to(Device::cpu()), product.sums, 0) <= bound_of(p.dtype, p.dtype));
        if (lane == &cuda.side) CHECK(found.to_vector() == first);
        first = found.to_vector();
      }
    }
  }
}

// All layouts, with and without a bias and row sums. In half, C is FP32 where it has one of the two.
void check_layouts(const Size& size, DType dtype, bool both_lanes) {
  for (const bool trans_a : {false, true})
    for (const bool trans_b : {false, true}) {
      const Product product(size, trans_a, trans_b, dtype);
      for (const bool bias : {false, true})
        for (const bool sums : {false, true})
          check_plans(product, bias != sums ? DType::f32 : dtype, bias, sums, both_lanes);
    }
}
}  // namespace

// Few and small, as the sanitizers' tools slow kernels down a hundredfold: cut tiles in every layout, then a k that is
// longer than what is in flight at once and that clusters of up to 8 blocks divide.
TEST_CASE("cuda products: quick ones, every layout and plan") {
  HT_NEEDS_CUDA();
  check_layouts({36, 68, 68}, DType::f32, false);
  check_layouts({40, 72, 72}, DType::f16, false);
  for (const DType dtype : {DType::f32, DType::f16})
    check_plans(Product({8, 8, 264}, false, true, dtype), dtype, true, true, false);
}

TEST_CASE("cuda products: small FP32 ones, every layout and plan, whole and cut tiles, with k divided and not") {
  HT_NEEDS_CUDA();
  for (const Size& size : {Size{64, 512, 1024},
                           {512, 1024, 64},
                           {4, 4, 4},
                           {36, 68, 132},
                           {8, 200, 260},
                           {64, 64, 520},
                           {8, 1000, 516},
                           {100, 200, 2052},
                           {128, 40, 4096},
                           {320, 360, 20},
                           {500, 1020, 132}})
    check_layouts(size, DType::f32, true);
}

TEST_CASE("cuda products: small ones in half, every layout and plan, whole and cut tiles, with k divided and not") {
  HT_NEEDS_CUDA();
  for (const DType dtype : {DType::f16, DType::bf16})
    for (const Size& size : {Size{64, 512, 1024},
                             {512, 1024, 64},
                             {64, 1024, 512},
                             {8, 8, 8},
                             {40, 72, 136},
                             {8, 200, 264},
                             {64, 64, 520},
                             {104, 200, 2056},
                             {128, 40, 4096}})
      check_layouts(size, dtype, true);
}

TEST_CASE("cuda products: what no kernel of ours takes") {
  HT_NEEDS_CUDA();
  if constexpr (kCudaBuild) {
    const CudaContext& cuda = Context::of(Device::cuda()).cuda();
    GemmProblem p{.m = 64, .n = 64, .k = 62};
    CHECK(small_gemm_plans(cuda, p, {}).empty());  // k is no multiple of 4
    p.k = 60, p.dtype = p.out = DType::f16;
    CHECK(small_gemm_plans(cuda, p, {}).empty());  // nor of 8
    p.k = 64, p.out = DType::bf16;
    CHECK(small_gemm_plans(cuda, p, {}).empty());
    p.dtype = DType::f32, p.out = DType::f16;
    CHECK(small_gemm_plans(cuda, p, {}).empty());
    p.k = 4104, p.out = DType::f32;
    CHECK(small_gemm_plans(cuda, p, {}).empty());
    p.k = 64;
    CHECK(!small_gemm_plans(cuda, p, {}).empty());
    p.relu = true;
    CHECK(small_gemm_plans(cuda, p, {}).empty());
    p.relu = false, p.batch = 2;
    CHECK(small_gemm_plans(cuda, p, {}).empty());
    p.batch = 1;
    CHECK(small_gemm_plans(cuda, p, {.b = reinterpret_cast<void*>(8)}).empty());
  }
}
