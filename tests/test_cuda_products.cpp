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

// A product of random numbers, layout bits: 1 A transposed, 2 B transposed, 4 a bias, 8 row sums.
struct Product {
  Product(const Size& size, int layout, DType dtype, DType out) {
    p = {.m = size.m, .n = size.n, .k = size.k};
    p.trans_a = layout & 1, p.trans_b = layout & 2, p.bias = layout & 4, p.row_sums = layout & 8;
    p.dtype = dtype, p.out = out;
    const auto draw = [](const Shape& shape, uint64_t stream, DType t) {
      return Tensor::uniform(shape, {21, stream}, -1, 1, DType::f64).to(t);
    };
    const Tensor a = draw(p.trans_a ? Shape{p.k, p.m} : Shape{p.m, p.k}, 1, dtype);
    const Tensor b = draw(p.trans_b ? Shape{p.n, p.k} : Shape{p.k, p.n}, 2, dtype), bias = draw({p.n}, 3, out);
    exact = Tensor::empty({p.m, p.n}, DType::f64), sums = Tensor::zeros({p.m}, DType::f64);
    const Tensor a64 = a.to(DType::f64);
    gemm(Context::of(Device::cpu()), {p.m, p.n, p.k, p.trans_a, p.trans_b}, a64, b.to(DType::f64), exact,
         p.bias ? bias.to(DType::f64) : Tensor());
    for (int64_t i = 0; i < p.m; ++i)
      for (int64_t j = 0; j < p.k; ++j)
        sums.data<double>()[i] += a64.data<double>()[p.trans_a ? j * p.m + i : i * p.k + j];
    const Device device = Device::cuda();
    da = a.to(device), db = b.to(device), dbias = bias.to(device);
    c = Tensor::empty({p.m, p.n}, out, device), found = Tensor::empty({p.m}, DType::f32, device);
    at = {da.data(), db.data(), p.bias ? dbias.data() : nullptr, c.data(), p.row_sums ? found.data() : nullptr};
  }

  GemmProblem p;
  Tensor exact, sums, da, db, dbias, c, found;
  GemmOperands at;
};

// Every plan, on both lanes, the same bits.
void check_plans(Product& product, double bound) {
  if constexpr (kCudaBuild) {
    CudaContext& cuda = Context::of(Device::cuda()).cuda();
    const GemmProblem& p = product.p;
    const auto plans = small_gemm_plans(cuda, p, product.at);
    REQUIRE(!plans.empty());
    for (const SmallGemmPlan& plan : plans) {
      INFO(p.m, 'x', p.n, 'x', p.k, ' ', p.dtype, "->", p.out, " transposed ", p.trans_a, p.trans_b, " bias ", p.bias,
           " sums ", p.row_sums, " tile ", plan.tile, " blocks ", plan.blocks);
      std::vector<double> first;
      for (CudaLane* lane : {&cuda.main, &cuda.side}) {
        product.c.fill_(NAN), product.found.fill_(NAN);
        cuda.order(cuda.main, *lane);
        small_gemm(cuda, *lane, p, plan, product.at);
        cuda.order(*lane, cuda.main);
        CHECK(distance(product.c.to(Device::cpu()), product.exact, 0) <= bound);
        if (p.row_sums) CHECK(distance(product.found.to(Device::cpu()), product.sums, 0) <= 1e-6);
        if (first.empty()) first = product.c.to_vector();
        CHECK(product.c.to_vector() == first);
      }
    }
  }
}
}  // namespace

TEST_CASE("cuda products: small FP32 ones, every layout and plan, whole and cut tiles, with k divided and not") {
  HT_NEEDS_CUDA();
  for (const Size& size : {Size{64, 512, 1024},
                           {512, 1024, 64},
                           {4, 4, 4},
                           {36, 68, 132},
                           {8, 1000, 516},
                           {100, 200, 2052},
                           {128, 40, 4096},
                           {320, 360, 20},
                           {500, 1020, 132}}) {
    for (int layout = 0; layout < 16; ++layout) {
      Product product(size, layout, DType::f32, DType::f32);
      check_plans(product, 1e-6);
    }
  }
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
