// Products of a classifier's head, one of whose sizes is a number of classes: a library's tiles are mostly empty there.
// All sums are FP32, in an order that the sizes decide.
#include "core/cuda_kernels.cuh"
#include "core/narrow_gemm.h"

namespace ht {

namespace {
constexpr int kRows = 4;                 // of C, that a thread has at once
constexpr int kPacks = 8, kGroups = 16;  // of a block that adds over k: packs of columns, and parts of k
constexpr int kAddThreads = kPacks * kGroups;

struct Sizes {
  int m, n, k;
};

// Everywhere kMost is the narrow size's place in registers. What lies beyond it is loaded from its last one instead, so
// that no branch stands between two loads, and left out when it comes to adding.
template <class T>
__device__ __forceinline__ Pack<T> pack_at(const T* from) {
  return *reinterpret_cast<const Pack<T>*>(from);
}

// C[m, n] = A[m, k] B[n, k]^T + bias, n narrow: a block takes `kTall` rows, its threads share k.
template <class T, class O, int kMost, int kTall>
__global__ void __launch_bounds__(kBlock) dot_kernel(Sizes size, const T* a, const T* b, const O* bias, O* c) {
  constexpr int N = Pack<T>::size, kWarps = kBlock / 32;
  __shared__ float sums[kWarps][kTall * kMost];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int row = static_cast<int>(blockIdx.x) * kTall;
  float sum[kTall][kMost] = {};
  let_next_start();
  wait_for_previous();
  for (int i = thread * N; i < size.k; i += kBlock * N) {
    Pack<T> x[kTall], y[kMost];
#pragma unroll
    for (int r = 0; r < kTall; ++r) x[r] = pack_at(a + int64_t{min(row + r, size.m - 1)} * size.k + i);
#pragma unroll
    for (int j = 0; j < kMost; ++j) y[j] = pack_at(b + int64_t{min(j, size.n - 1)} * size.k + i);
#pragma unroll
    for (int j = 0; j < kMost; ++j)
#pragma unroll
      for (int r = 0; r < kTall; ++r)
#pragma unroll
        for (int e = 0; e < N; ++e) sum[r][j] += load_as(x[r].v[e]) * load_as(y[j].v[e]);
  }
#pragma unroll
  for (int r = 0; r < kTall; ++r) {
#pragma unroll
    for (int j = 0; j < kMost; ++j) {
#pragma unroll
      for (int other = 16; other > 0; other /= 2) sum[r][j] += __shfl_xor_sync(0xffffffffu, sum[r][j], other);
      if (lane == 0) sums[warp][r * kMost + j] = sum[r][j];
    }
  }
  __syncthreads();
  const int r = thread / kMost, j = thread % kMost;
  if (r >= kTall || row + r >= size.m || j >= size.n) return;
  float total = bias ? static_cast<float>(load_as(bias[j])) : 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += sums[w][thread];
  c[int64_t{row + r} * size.n + j] = store_as<O>(total);
}

// C[m, n] = A[m, k] B[k, n], k narrow: a thread has kRows rows of a pack of columns.
template <class T, class O, int kMost>
__global__ void __launch_bounds__(kBlock) outer_kernel(Sizes size, const T* a, const T* b, const O* bias, O* c) {
  constexpr int N = Pack<T>::size;
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * N;
  const int row = static_cast<int>(blockIdx.y) * kRows;
  __shared__ float x[kRows][kMost];
  let_next_start();
  wait_for_previous();
  if (const int r = static_cast<int>(threadIdx.x) / kMost, i = static_cast<int>(threadIdx.x) % kMost; r < kRows)
    x[r][i] = row + r < size.m && i < size.k ? load_as(a[int64_t{row + r} * size.k + i]) : 0.0f;
  __syncthreads();
  if (column >= size.n) return;
  Pack<T> y[kMost];
#pragma unroll
  for (int i = 0; i < kMost; ++i) y[i] = pack_at(b + int64_t{min(i, size.k - 1)} * size.n + column);
  float sum[kRows][N];
#pragma unroll
  for (int e = 0; e < N; ++e) {
    const float start = bias ? static_cast<float>(load_as(bias[column + e])) : 0.0f;
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum[r][e] = start;
  }
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    if (i >= size.k) break;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int e = 0; e < N; ++e) sum[r][e] += x[r][i] * static_cast<float>(load_as(y[i].v[e]));
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (row + r >= size.m) return;
    Pack<O, N> out;
#pragma unroll
    for (int e = 0; e < N; ++e) out.v[e] = store_as<O>(sum[r][e]);
    *reinterpret_cast<Pack<O, N>*>(c + int64_t{row + r} * size.n + column) = out;
  }
}

// C[m, n] = A[k, m]^T B[k, n], m narrow: a block has kPacks packs of columns, its groups of threads share k.
template <class T, class O, int kMost>
__global__ void __launch_bounds__(kAddThreads) add_kernel(Sizes size, const T* a, const T* b, const O* bias, O* c) {
  constexpr int N = Pack<T>::size, kWide = kPacks * N;
  extern __shared__ float sums[];  // [kGroups][m][kWide]
  const int thread = static_cast<int>(threadIdx.x), pack = thread % kPacks, group = thread / kPacks;
  const int left = static_cast<int>(blockIdx.x) * kWide, column = left + pack * N;
  float sum[kMost][N] = {};
  let_next_start();
  wait_for_previous();
  if (column < size.n) {
#pragma unroll 4
    for (int i = group; i < size.k; i += kGroups) {
      const Pack<T> y = pack_at(b + int64_t{i} * size.n + column);
      T x[kMost];
#pragma unroll
      for (int j = 0; j < kMost; ++j) x[j] = a[int64_t{i} * size.m + min(j, size.m - 1)];
#pragma unroll
      for (int j = 0; j < kMost; ++j)
#pragma unroll
        for (int e = 0; e < N; ++e) sum[j][e] += load_as(x[j]) * load_as(y.v[e]);
    }
  }
#pragma unroll
  for (int j = 0; j < kMost; ++j) {
    if (j >= size.m) break;
#pragma unroll
    for (int e = 0; e < N; ++e) sums[(group * size.m + j) * kWide + e * kPacks + pack] = sum[j][e];
  }
  __syncthreads();
  for (int i = thread; i < size.m * kWide; i += kAddThreads) {
    const int j = i / kWide, at = left + i % kPacks * N + i % kWide / kPacks;
    if (at >= size.n) continue;
    float total = bias ? static_cast<float>(load_as(bias[at])) : 0.0f;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) total += sums[g * size.m * kWide + i];
    c[int64_t{j} * size.n + at] = store_as<O>(total);
  }
}

unsigned up(int64_t n, int64_t d) { return static_cast<unsigned>((n + d - 1) / d); }

// Which of the sizes is the narrow one, by the layout that a layer's three products have; none otherwise.
enum class Kind { none, dot, outer, add };
Kind kind_of(const GemmProblem& p) {
  if (!p.trans_a && p.trans_b && p.n <= kNarrowest) return Kind::dot;
  if (!p.trans_a && !p.trans_b && p.k <= kNarrowest) return Kind::outer;
  if (p.trans_a && !p.trans_b && p.m <= kNarrowest) return Kind::add;
  return Kind::none;
}

template <class T, class O, int kMost>
void queue(const CudaContext& cuda, const CudaLane& lane, const GemmProblem& p, const GemmOperands& at) {
  constexpr int N = Pack<T>::size;
  const Sizes size{static_cast<int>(p.m), static_cast<int>(p.n), static_cast<int>(p.k)};
  LaunchShape shape;
  shape.block = kBlock, shape.stream = lane.stream;
  const auto go = [&](void (*kernel)(Sizes, const T*, const T*, const O*, O*)) {
    launch_early(cuda, kernel, shape, size, static_cast<const T*>(at.a), static_cast<const T*>(at.b),
                 static_cast<const O*>(at.bias), static_cast<O*>(at.c));
  };
  switch (kind_of(p)) {
    case Kind::dot: {
      const bool tall = p.m > int64_t{cuda.sm_count} * 2;
      shape.grid = up(p.m, tall ? kRows : 1);
      return tall ? go(dot_kernel<T, O, kMost, kRows>) : go(dot_kernel<T, O, kMost, 1>);
    }
    case Kind::outer:
      shape.block = std::clamp<unsigned>(up(up(p.n, N), 32) * 32, kRows * kMost, kBlock);
      shape.grid = dim3(up(p.n, int64_t{N} * shape.block.x), up(p.m, kRows));
      return go(outer_kernel<T, O, kMost>);
    case Kind::add:
      shape.block = kAddThreads;
      shape.grid = up(p.n, kPacks * N);
      shape.shared_bytes = sizeof(float) * static_cast<size_t>(kGroups * p.m * kPacks * N);
      return go(add_kernel<T, O, kMost>);
    case Kind::none:
      break;
  }
}
}  // namespace

bool narrow_gemm_takes(const GemmProblem& p, const GemmOperands& at) {
  const Kind kind = kind_of(p);
  constexpr int64_t kLargest = 1 << 16;  // of rows; columns and k are limited by the kernels' 32-bit indices
  if (kind == Kind::none || p.batch != 1 || p.relu || p.row_sums || p.m > kLargest || p.n >= 1 << 24 || p.k >= 1 << 24)
    return false;
  const bool half = is_half(p.dtype);
  if (!(half || p.dtype == DType::f32) || !(p.out == p.dtype || p.out == DType::f32)) return false;
  const int64_t wide = half ? 8 : 4;
  const auto aligned = [](const void* x) { return reinterpret_cast<uintptr_t>(x) % 16 == 0; };
  return (kind == Kind::dot ? p.k : p.n) % wide == 0 && aligned(at.b) && aligned(kind == Kind::dot ? at.a : at.c);
}

void narrow_gemm(const CudaContext& cuda, const CudaLane& lane, const GemmProblem& p, const GemmOperands& at) {
  const auto with_size = [&]<class T, class O>() {
    const Kind kind = kind_of(p);
    const int64_t narrow = kind == Kind::dot ? p.n : kind == Kind::outer ? p.k : p.m;
    narrow <= 8    ? queue<T, O, 8>(cuda, lane, p, at)
    : narrow <= 12 ? queue<T, O, 12>(cuda, lane, p, at)
                   : queue<T, O, kNarrowest>(cuda, lane, p, at);
  };
  const auto with_out = [&]<class T>() {
    p.out == p.dtype ? with_size.template operator()<T, T>() : with_size.template operator()<T, float>();
  };
  if (p.dtype == DType::f16) return with_out.template operator()<Half>();
  if (p.dtype == DType::bf16) return with_out.template operator()<BFloat16>();
  with_out.template operator()<float>();
}

}  // namespace ht
