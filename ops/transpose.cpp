// y is x with two axes exchanged, as a copy (in square tiles, so that both sides stay in cache);  dx = dy, exchanged
// back.
#include "ops/transpose.h"

#include <algorithm>

#include "core/build.h"
#include "core/parallel.h"
#include "ops/ops.h"
#include "ops/registry.h"
#include "ops/samples.h"

namespace ht {

namespace {
// T is an unsigned type of the element's size: a transpose moves bits.
template <class T>
void transpose_cpu(const TransposePlan& p, const void* from, void* to) {
  constexpr int64_t kTile = 32;
  const T* x = static_cast<const T*>(from);
  T* y = static_cast<T*>(to);
  const int64_t tiles = (p.rows + kTile - 1) / kTile, work = std::min(p.rows, kTile) * p.columns * p.inner;
  const int64_t x_row = p.middle * p.columns * p.inner, y_row = p.middle * p.rows * p.inner;
  const int64_t grain = std::max<int64_t>(1, (1 << 14) / std::max<int64_t>(work, 1));
  parallel_for(p.outer * p.middle * tiles, grain, [=](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t tile = item % tiles, middle = item / tiles % p.middle, outer = item / tiles / p.middle;
      const int64_t r0 = tile * kTile, r1 = std::min(p.rows, r0 + kTile);
      const T* in = x + outer * p.rows * x_row + middle * p.columns * p.inner;
      T* out = y + outer * p.columns * y_row + middle * p.rows * p.inner;
      for (int64_t c0 = 0; c0 < p.columns; c0 += kTile) {
        const int64_t c1 = std::min(p.columns, c0 + kTile);
        if (p.inner == 1) {  // through a tile of our own: rows a power of 2 apart would evict each other from the cache
          T block[kTile][kTile];
          for (int64_t r = r0; r < r1; ++r)
            for (int64_t c = c0; c < c1; ++c) block[c - c0][r - r0] = in[r * x_row + c];
          for (int64_t c = c0; c < c1; ++c) std::copy_n(block[c - c0], r1 - r0, out + c * y_row + r0);
        } else {
          for (int64_t c = c0; c < c1; ++c)
            for (int64_t r = r0; r < r1; ++r)
              std::copy_n(in + r * x_row + c * p.inner, p.inner, out + c * y_row + r * p.inner);
        }
      }
    }
  });
}

struct Transpose final : Op {
  Transpose(int a, int b) : axis0(a), axis1(b) {}
  const OpInfo& info() const override { return transpose_info; }

  TensorSpec infer(Inputs in) const override {
    const Tensor x = in[0];
    for (const int axis : {axis0, axis1})
      check(axis >= -x.rank() && axis < x.rank(), name(), ": axis ", axis, " is out of range for rank ", x.rank(), " (",
            Named{"x", x}, ")");
    return {x.shape().with(axis0, x.dim(axis1)).with(axis1, x.dim(axis0)), x.dtype()};
  }

  Tensor forward(Context& ctx, Inputs in, const TensorSpec&) override { return exchange(ctx, in[0]); }

  Grads backward(Context& ctx, const Tensor& dy, const std::vector<bool>&) override { return {exchange(ctx, dy)}; }

  Tensor exchange(Context& ctx, const Tensor& x) const {
    const Shape& s = x.shape();
    const auto [a, b] = std::minmax({s.normalize(axis0), s.normalize(axis1)});
    const Tensor y = Tensor::empty(s.with(a, s[b]).with(b, s[a]), x.dtype(), ctx.device());
    TransposePlan plan{s.product(0, a), s[a], s.product(a + 1, b), s[b], s.product(b + 1, s.rank())};
    if (a == b) plan = {1, 1, 1, 1, s.numel()};
    if (x.numel() == 0) return y;
    if constexpr (kCudaBuild) {
      if (ctx.is_cuda()) transpose_cuda(ctx, plan, x, y);
    }
    if (!ctx.is_cuda()) {
      auto* run = &transpose_cpu<uint8_t>;
      if (size_of(x.dtype()) == 2) run = &transpose_cpu<uint16_t>;
      if (size_of(x.dtype()) == 4) run = &transpose_cpu<uint32_t>;
      if (size_of(x.dtype()) == 8) run = &transpose_cpu<uint64_t>;
      run(plan, x.data(), y.data());
    }
    return y;
  }

  int axis0, axis1;
};

std::vector<Sample> samples() {
  const auto sample = [](const Shape& shape, int axis0, int axis1, uint64_t stream) {
    return Sample{str("x ", shape, " axes ", axis0, ' ', axis1),
                  {sample_signed(shape, stream, 0.1, 2)},
                  [=](std::span<const Var> in) { return transpose(in[0], axis0, axis1); }};
  };
  return {sample({3, 5}, 0, 1, 0),       sample({1, 4, 3}, -1, 1, 1), sample({2, 3, 1, 5}, 0, 3, 2),
          sample({2, 3, 4, 2}, 2, 1, 3), sample({5}, 0, 0, 4),        sample({0, 3}, 0, 1, 5)};
}
}  // namespace

const OpInfo transpose_info{"transpose", AmpTag::leave, "only moves data", samples};

Var transpose(const Var& x, int axis0, int axis1) { return apply(Transpose(axis0, axis1), {x}); }

}  // namespace ht
