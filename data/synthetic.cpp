#include "data/synthetic.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "core/parallel.h"
#include "core/philox.h"

namespace ht::data {

namespace {
constexpr uint64_t kTrainStream = 0xD4ull << 56, kTestStream = 0xD5ull << 56;  // + image
constexpr int kSide = 32;
constexpr int kPx = 256;       // lengths are in 1/256 of a pixel
constexpr int kOne = 1 << 14;  // sines and cosines are in 1/16384

enum Class { disc, ring, square, triangle, cross, horizontal, vertical, diagonal, checkerboard, dots, kClasses };

// Random numbers of one image, in the order of its drawing.
class Draw {
 public:
  explicit Draw(PhiloxStream stream) : stream_(stream) {}
  int between(int low, int high) {
    return low + static_cast<int>(stream_.below(next_++, static_cast<uint32_t>(high - low + 1)));
  }
  bool chance(int percent) { return between(0, 99) < percent; }

 private:
  PhiloxStream stream_;
  uint64_t next_ = 0;
};

struct Point {
  int x, y;
};

// (cos, sin) of whole degrees. Rounding to 14 bits hides how a machine's libm rounds.
Point direction(int degrees) {
  const double angle = degrees * 0.017453292519943295;
  return {static_cast<int>(std::lround(std::cos(angle) * kOne)), static_cast<int>(std::lround(std::sin(angle) * kOne))};
}

int along(Point d, int x, int y) { return (d.x * x + d.y * y) / kOne; }
int length(int x, int y) {
  return static_cast<int>(std::sqrt(static_cast<double>(x) * x + static_cast<double>(y) * y));
}
int modulo(int a, int n) { return (a % n + n) % n; }

// How much of a pixel lies inside, 0..256, from the signed distance of its centre to the edge (negative inside).
int coverage(int distance) { return std::clamp(kPx / 2 - distance, 0, kPx); }

using Colour = std::array<int, 3>;

int difference(const Colour& a, const Colour& b) {
  return std::abs(a[0] - b[0]) + std::abs(a[1] - b[1]) + std::abs(a[2] - b[2]);
}

void blend(Colour& under, const Colour& over, int alpha) {  // alpha 0..256
  for (size_t c = 0; c < 3; ++c) under[c] += (over[c] - under[c]) * alpha / 256;
}

// The figure of one class: signed distance to its edge at a point relative to the centre.
struct Figure {
  int kind, radius, period, phase_u, phase_v;
  bool round_patch;  // a texture fills a disc, else a square
  Point axis;

  Figure(int label, Draw& draw) : kind(label) {
    const bool texture = label >= horizontal;
    radius = draw.between(texture ? 10 * kPx : 6 * kPx, texture ? 19 * kPx : 12 * kPx);
    period = draw.between(5 * kPx, 9 * kPx);
    phase_u = draw.between(0, period - 1);
    phase_v = draw.between(0, period - 1);
    round_patch = draw.chance(50);
    int angle = draw.between(-13, 13);
    if (label == triangle || label == dots) angle = draw.between(0, 359);
    if (label == square || label == cross || label == checkerboard) angle = draw.between(-25, 25);
    if (label == vertical) angle += 90;
    if (label == diagonal) angle += draw.chance(50) ? 45 : 135;
    axis = direction(angle);
  }

  int distance(int x, int y) const {
    const int u = along(axis, x, y), v = along({-axis.y, axis.x}, x, y);
    const int box = std::max(std::abs(u), std::abs(v));
    switch (kind) {
      case disc:
        return length(u, v) - radius;
      case ring:
        return std::abs(length(u, v) - radius * 4 / 5) - radius / 5;
      case square:
        return box - radius * 7 / 8;
      case triangle:  // the farthest of three sides, whose normals are 120 degrees apart
        return std::max(v, along({14189, -kOne / 2}, std::abs(u), v)) - radius * 5 / 8;
      case cross:
        return std::max(box - radius, std::min(std::abs(u), std::abs(v)) - radius * 3 / 10);
      default:
        break;
    }
    const int patch = (round_patch ? length(x, y) : std::max(std::abs(x), std::abs(y))) - radius;
    return std::max(patch, texture(u, v));
  }

 private:
  int texture(int u, int v) const {
    const int pu = modulo(u + phase_u, period), pv = modulo(v + phase_v, period);
    const int du = std::abs(pu - period / 2) - period / 4, dv = std::abs(pv - period / 2) - period / 4;
    if (kind == dots) return length(pu - period / 2, pv - period / 2) - period * 3 / 10;
    if (kind == checkerboard) return ((du < 0) == (dv < 0) ? -1 : 1) * std::min(std::abs(du), std::abs(dv));
    return dv;  // stripes along u
  }
};

void draw_image(int label, PhiloxStream stream, uint8_t* pixels) {
  Draw draw(stream);
  const auto colour = [&] { return Colour{draw.between(0, 255), draw.between(0, 255), draw.between(0, 255)}; };
  const Colour ground = colour();
  Colour ground_end = ground, ink = colour();
  for (int& c : ground_end) c = std::clamp(c + draw.between(-90, 90), 0, 255);
  for (int tries = 0; tries < 30 && std::min(difference(ink, ground), difference(ink, ground_end)) < 150; ++tries)
    ink = colour();
  const Point slope = direction(draw.between(0, 359));

  const Figure figure(label, draw);
  const int reach = label >= horizontal ? 5 : 12 - figure.radius / kPx + 2;  // keeps most of a shape in the picture
  const int half = kSide / 2 * kPx;
  const Point centre{half + draw.between(-reach * kPx, reach * kPx), half + draw.between(-reach * kPx, reach * kPx)};

  struct Line {
    Point normal;
    int offset, half_width, alpha;
    Colour colour;
  };
  std::array<Line, 2> lines;
  const int line_count = draw.between(0, 2);
  for (Line& line : lines)
    line = {direction(draw.between(0, 359)), draw.between(-12 * kPx, 12 * kPx), draw.between(kPx / 3, kPx * 2 / 3),
            draw.between(90, 200), colour()};
  const Line cover{direction(draw.between(0, 359)), draw.between(11 * kPx, 22 * kPx), 0, 256, colour()};
  const int noise = draw.between(6, 34);  // amplitude; the standard deviation is 0.41 of it

  for (int y = 0; y < kSide; ++y)
    for (int x = 0; x < kSide; ++x) {
      const int px = x * kPx + kPx / 2, py = y * kPx + kPx / 2;
      Colour c = ground;
      blend(c, ground_end, std::clamp(along(slope, px - half, py - half) / kSide + kPx / 2, 0, 256));
      blend(c, ink, coverage(figure.distance(px - centre.x, py - centre.y)));
      for (int i = 0; i < line_count; ++i) {
        const Line& l = lines[static_cast<size_t>(i)];
        const int distance = std::abs(along(l.normal, px - half, py - half) - l.offset) - l.half_width;
        blend(c, l.colour, coverage(distance) * l.alpha / 256);
      }
      blend(c, cover.colour, coverage(cover.offset - along(cover.normal, px - half, py - half)));
      const Philox4 random = stream.block((uint64_t{1} << 32) + static_cast<uint64_t>(y * kSide + x));
      for (size_t k = 0; k < 3; ++k) {  // the sum of two bytes: a triangle from -255 to 255
        const int grain = static_cast<int>(random[k] & 255u) + static_cast<int>(random[k] >> 8 & 255u) - 255;
        *pixels++ = static_cast<uint8_t>(std::clamp(c[k] + grain * noise / 255, 0, 255));
      }
    }
}

ImageDataset draw_set(int64_t n, uint64_t seed, uint64_t stream, const char* name) {
  check(n >= 1, "make_synthetic: ", n, " images for the ", name, "; use 1 or more");
  ImageDataset set{Tensor::empty({n, kSide, kSide, 3}, DType::u8),
                   Tensor::empty({n}, DType::i32),
                   {"disc", "ring", "square", "triangle", "cross", "horizontal stripes", "vertical stripes",
                    "diagonal stripes", "checkerboard", "dots"},
                   str("generated shapes and textures, seed ", seed, ", ", name)};
  uint8_t* pixels = set.images.data<uint8_t>();
  int32_t* labels = set.labels.data<int32_t>();
  parallel_for(n, 64, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      labels[i] = static_cast<int32_t>(i % kClasses);
      draw_image(labels[i], {seed, stream + static_cast<uint64_t>(i)}, pixels + i * kSide * kSide * 3);
    }
  });
  return set;
}
}  // namespace

TrainTest make_synthetic(const SyntheticOptions& options) {
  return {draw_set(options.train, options.seed, kTrainStream, "training set"),
          draw_set(options.test, options.seed, kTestStream, "test set")};
}

}  // namespace ht::data
