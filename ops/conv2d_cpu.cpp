// All three convolutions are sums over the kernel's taps of (rows gathered from an image) x (a matrix). Rows are
// gathered for a block of pixels and a segment of the taps at a time.
#include <algorithm>
#include <vector>

#include "core/parallel.h"
#include "ops/conv2d_kernels.h"
#include "ops/cpu_scratch.h"
#include "ops/gemm.h"

namespace ht {

namespace {
constexpr int64_t kForwardRows = 256, kForwardDepth = 288;  // block of pixels x segment of the taps' channels
constexpr int64_t kWgradRows = 256, kWgradCols = 256;
constexpr int64_t kItems = 16;  // pieces of work to aim at, from the shape alone

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Tap {
  int64_t y, x;     // source pixel of grid pixel (0, 0)
  int64_t index;    // kh * kernel width + kw
  int64_t run = 1;  // this tap and those after it that read successive pixels of a row
};

// Which rows a block gathers: grid pixel (i, j) takes, for each tap, the source pixel (i step + y, j step + x), or
// zeros when that lies outside the image.
struct Gather {
  int64_t n, grid_h, grid_w, step;
  int64_t h, w, channels;  // of the source image
  std::vector<Tap> taps;
  int64_t pixels() const { return n * grid_h * grid_w; }
};

// Channels [c0, c1) of taps [t0, t1); c0 = 0 and c1 = all whenever there are several taps.
struct Segment {
  int64_t t0, t1, c0, c1;
  int64_t size() const { return (t1 - t0) * (c1 - c0); }
};

// Even segments of at most `limit` channels (or one channel).
std::vector<Segment> split(int64_t taps, int64_t channels, int64_t limit) {
  std::vector<Segment> segments;
  if (channels == 0) return segments;
  if (channels <= limit) {
    const int64_t parts = ceil_div(taps, limit / channels);
    for (int64_t p = 0; p < parts; ++p) segments.push_back({taps * p / parts, taps * (p + 1) / parts, 0, channels});
  } else {
    const int64_t parts = ceil_div(channels, limit);
    for (int64_t t = 0; t < taps; ++t)
      for (int64_t p = 0; p < parts; ++p)
        segments.push_back({t, t + 1, channels * p / parts, channels * (p + 1) / parts});
  }
  return segments;
}

int64_t largest(const std::vector<Segment>& segments) {
  int64_t size = 0;
  for (const Segment& s : segments) size = std::max(size, s.size());
  return size;
}

void find_runs(std::vector<Tap>& taps) {
  for (size_t t = taps.size(); t-- > 1;)
    if (taps[t - 1].y == taps[t].y && taps[t - 1].x + 1 == taps[t].x) taps[t - 1].run = taps[t].run + 1;
}

// Rows [p0, p1) of the segment: `to` is [p1 - p0, segment.size()].
template <class T>
void gather(const Gather& g, const T* source, int64_t p0, int64_t p1, const Segment& s, acc_t<T>* to) {
  const int64_t width = s.c1 - s.c0;
  int64_t j = p0 % g.grid_w, i = p0 / g.grid_w % g.grid_h, n = p0 / (g.grid_w * g.grid_h);
  for (int64_t p = p0; p < p1; ++p) {
    for (int64_t t = s.t0; t < s.t1;) {
      const Tap& tap = g.taps[static_cast<size_t>(t)];
      const int64_t y = i * g.step + tap.y, x = j * g.step + tap.x, run = std::min(tap.run, s.t1 - t);
      if (y < 0 || y >= g.h || x + run <= 0 || x >= g.w) {
        std::fill_n(to, run * width, acc_t<T>(0));
      } else {
        const int64_t before = std::max<int64_t>(-x, 0), inside = std::min(run, g.w - x) - before;
        std::fill_n(to, before * width, acc_t<T>(0));
        widen(source + ((n * g.h + y) * g.w + x + before) * g.channels + s.c0, 0, 1, inside * width,
              to + before * width, 0);
        std::fill_n(to + (before + inside) * width, (run - before - inside) * width, acc_t<T>(0));
      }
      to += run * width;
      t += run;
    }
    if (++j == g.grid_w) {
      j = 0;
      if (++i == g.grid_h) i = 0, ++n;
    }
  }
}

// Grid pixel (i, j) is pixel (i step + y, j step + x) of the destination image.
struct Scatter {
  int64_t h, w, step = 1, y = 0, x = 0;
};

// destination [pixel, cols] = bias + the sum over segments of gathered rows x weights (one matrix a segment).
template <class T>
void convolve(const Gather& g, const T* source, const std::vector<Segment>& segments,
              const std::vector<MatrixView<acc_t<T>>>& weights, int64_t cols, const T* bias, const Scatter& to,
              T* destination) {
  using A = acc_t<T>;
  const int64_t pixels = g.pixels();
  if (pixels == 0 || cols == 0) return;
  const int64_t rows = std::min(pixels, kForwardRows), row_blocks = ceil_div(pixels, rows);
  int64_t width = cols;
  while (row_blocks * ceil_div(cols, width) < kItems / 2 && width >= 256) width = ceil_div(width, 16) * 8;
  const int64_t col_blocks = ceil_div(cols, width);
  const bool in_place = sizeof(T) > 2 && to.step == 1;
  const int64_t gathered = rows * largest(segments), scratch = gathered + (in_place ? 0 : rows * width);
  const Scratch<A> buffers(num_threads() * scratch);

  parallel_dynamic(row_blocks * col_blocks, 1, [&](int64_t begin, int64_t end, int slot) {
    A* const patch = buffers.data() + slot * scratch;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t p0 = item / col_blocks * rows, c0 = item % col_blocks * width;
      const int64_t m = std::min(rows, pixels - p0), n = std::min(width, cols - c0);
      A* sum = patch + gathered;
      int64_t ld = n;
      if constexpr (sizeof(T) > 2) {
        if (in_place) sum = destination + p0 * cols + c0, ld = cols;
      }
      for (int64_t r = 0; r < m && (bias || segments.empty()); ++r) {
        if (bias)
          widen(bias + c0, 0, 1, n, sum + r * ld, 0);
        else
          std::fill_n(sum + r * ld, n, A(0));
      }
      for (size_t k = 0; k < segments.size(); ++k) {
        gather(g, source, p0, p0 + m, segments[k], patch);
        gemm_block<A>(m, n, segments[k].size(), {patch, segments[k].size()}, weights[k].block(0, c0), sum, ld,
                      bias || k > 0);
      }
      for (int64_t r = 0; r < m && !in_place; ++r) {
        const int64_t p = p0 + r, j = p % g.grid_w, i = p / g.grid_w % g.grid_h, image = p / (g.grid_w * g.grid_h);
        const int64_t pixel = (image * to.h + i * to.step + to.y) * to.w + j * to.step + to.x;
        narrow<T>(sum + r * ld, 0, 1, n, destination + pixel * cols + c0, 0);
      }
    }
  });
}

// The whole weight in the type it is computed in: itself for float and double.
template <class T>
const acc_t<T>* wide_weight(const T* weight, int64_t count, const Scratch<acc_t<T>>& buffer) {
  if constexpr (sizeof(T) == 2) {
    widen(weight, 0, 1, count, buffer.data(), 0);
    return buffer.data();
  } else {
    return weight;
  }
}

template <class T>
void forward(const Conv2dShape& s, const T* x, const T* weight, const T* bias, T* y) {
  using A = acc_t<T>;
  const int64_t k = s.taps() * s.in;
  const Scratch<A> buffer(sizeof(T) == 2 ? s.out * k : 0);
  const A* const w = wide_weight(weight, s.out * k, buffer);
  Gather g{s.n, s.oh, s.ow, s.stride, s.h, s.w, s.in, {}};
  for (int64_t i = 0; i < s.kh; ++i)
    for (int64_t j = 0; j < s.kw; ++j)
      g.taps.push_back({i * s.dilation - s.padding, j * s.dilation - s.padding, i * s.kw + j});
  find_runs(g.taps);
  const std::vector<Segment> segments = split(s.taps(), s.in, kForwardDepth);
  std::vector<MatrixView<A>> weights;
  for (const Segment& e : segments) weights.push_back({w + e.t0 * s.in + e.c0, k, true});
  convolve(g, x, segments, weights, s.out, bias, Scatter{s.oh, s.ow}, y);
}

// dx[h, w] = the sum over taps with (h + padding - i dilation) divisible by the stride (w alike) of
// dy[(h + padding - i dilation) / stride, ...] W[:, i, j, :]. Pixels of the same remainder share their taps, so there
// is one gather for each of the stride^2 phases, and no product with the zeros between.
template <class T>
void dgrad(const Conv2dShape& s, const T* dy, const T* weight, T* dx) {
  using A = acc_t<T>;
  const int64_t k = s.taps() * s.in, matrix = s.out * s.in;
  // Segments of several taps need the weight as [tap, out, in], and so do 16-bit weights.
  const bool reorder = sizeof(T) == 2 || 2 * s.out <= kForwardDepth;
  const Scratch<A> reordered(reorder ? s.out * k : 0);
  for (int64_t py = 0; py < std::min(s.stride, s.h); ++py) {
    for (int64_t px = 0; px < std::min(s.stride, s.w); ++px) {
      Gather g{s.n, ceil_div(s.h - py, s.stride), ceil_div(s.w - px, s.stride), 1, s.oh, s.ow, s.out, {}};
      for (int64_t i = s.kh; i-- > 0;) {
        for (int64_t j = s.kw; j-- > 0;) {
          const int64_t y = py + s.padding - i * s.dilation, x = px + s.padding - j * s.dilation;
          if (y % s.stride == 0 && x % s.stride == 0) g.taps.push_back({y / s.stride, x / s.stride, i * s.kw + j});
        }
      }
      find_runs(g.taps);
      const auto taps = static_cast<int64_t>(g.taps.size());
      if (reorder) {
        parallel_for(taps * s.out, std::max<int64_t>((1 << 15) / std::max<int64_t>(s.in, 1), 1),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t r = begin; r < end; ++r)
                         widen(weight + r % s.out * k + g.taps[static_cast<size_t>(r / s.out)].index * s.in, 0, 1, s.in,
                               reordered.data() + r * s.in, 0);
                     });
      }
      const std::vector<Segment> segments = split(taps, s.out, kForwardDepth);
      std::vector<MatrixView<A>> weights;
      for (const Segment& e : segments) {
        if (reorder) {
          weights.push_back({reordered.data() + e.t0 * matrix + e.c0 * s.in, s.in});
        } else if constexpr (sizeof(T) > 2) {
          weights.push_back({weight + g.taps[static_cast<size_t>(e.t0)].index * s.in + e.c0 * k, k});
        }
      }
      convolve<T>(g, dy, segments, weights, s.in, nullptr, Scatter{s.h, s.w, s.stride, py, px}, dx);
    }
  }
}

// dW[:, segment] = the sum over blocks of pixels of dy^T x gathered rows. When there are few segments the pixels are
// split as well, into partial sums added in order.
template <class T>
void wgrad(const Conv2dShape& s, const T* dy, const T* x, T* dweight) {
  using A = acc_t<T>;
  const int64_t k = s.taps() * s.in, pixels = s.n * s.oh * s.ow;
  if (pixels == 0 || s.out * k == 0) {
    std::fill_n(dweight, s.out * k, T{});
    return;
  }
  Gather g{s.n, s.oh, s.ow, s.stride, s.h, s.w, s.in, {}};
  for (int64_t i = 0; i < s.kh; ++i)
    for (int64_t j = 0; j < s.kw; ++j)
      g.taps.push_back({i * s.dilation - s.padding, j * s.dilation - s.padding, i * s.kw + j});
  find_runs(g.taps);
  const std::vector<Segment> segments = split(s.taps(), s.in, kWgradCols);
  const auto columns = static_cast<int64_t>(segments.size());
  const int64_t rows = std::min(pixels, kWgradRows), row_blocks = ceil_div(pixels, rows);
  const int64_t parts = std::min(row_blocks, ceil_div(kItems, columns));
  const bool in_place = sizeof(T) > 2 && parts == 1;
  const Scratch<A> partial(in_place ? 0 : parts * s.out * k);
  A* sums = partial.data();
  if constexpr (sizeof(T) > 2) {
    if (in_place) sums = dweight;
  }
  const int64_t gathered = rows * largest(segments), scratch = gathered + (sizeof(T) == 2 ? rows * s.out : 0);
  const Scratch<A> buffers(num_threads() * scratch);

  parallel_dynamic(columns * parts, 1, [&](int64_t begin, int64_t end, int slot) {
    A* const patch = buffers.data() + slot * scratch;
    for (int64_t item = begin; item < end; ++item) {
      const Segment& e = segments[static_cast<size_t>(item % columns)];
      const int64_t part = item / columns, first = row_blocks * part / parts, last = row_blocks * (part + 1) / parts;
      A* const sum = sums + part * s.out * k + e.t0 * s.in + e.c0;
      for (int64_t b = first; b < last; ++b) {
        const int64_t p0 = b * rows, m = std::min(rows, pixels - p0);
        gather(g, x, p0, p0 + m, e, patch);
        MatrixView<A> left{nullptr, s.out, true};
        if constexpr (sizeof(T) == 2) {
          widen(dy + p0 * s.out, 0, 1, m * s.out, patch + gathered, 0);
          left.data = patch + gathered;
        } else {
          left.data = dy + p0 * s.out;
        }
        gemm_block<A>(s.out, e.size(), m, left, {patch, e.size()}, sum, k, b > first);
      }
    }
  });
  if (in_place) return;
  parallel_for(s.out * k, 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t p = 1; p < parts; ++p) {
      const A* const from = sums + p * s.out * k;
      for (int64_t i = begin; i < end; ++i) sums[i] += from[i];
    }
    narrow<T>(sums + begin, 0, 1, end - begin, dweight + begin, 0);
  });
}
}  // namespace

void conv2d_forward_cpu(const Conv2dShape& s, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const Tensor& y) {
  dispatch_floating(y.dtype(), "conv2d", [&]<class T>() {
    forward(s, x.data<T>(), weight.data<T>(), bias ? bias.data<T>() : nullptr, y.data<T>());
  });
}

void conv2d_dgrad_cpu(const Conv2dShape& s, const Tensor& dy, const Tensor& weight, const Tensor& dx) {
  dispatch_floating(dx.dtype(), "conv2d", [&]<class T>() { dgrad(s, dy.data<T>(), weight.data<T>(), dx.data<T>()); });
}

void conv2d_wgrad_cpu(const Conv2dShape& s, const Tensor& dy, const Tensor& x, const Tensor& dweight) {
  dispatch_floating(dweight.dtype(), "conv2d",
                    [&]<class T>() { wgrad(s, dy.data<T>(), x.data<T>(), dweight.data<T>()); });
}

}  // namespace ht
