#include "core/shape.h"

#include <algorithm>
#include <ostream>
#include <string_view>
#include <vector>

namespace ht {

Shape::Shape(std::span<const int64_t> sizes) {
  check(sizes.size() <= kMaxRank, "shape: rank ", sizes.size(), " is above the limit of ", kMaxRank);
  rank_ = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), sizes_.begin());
  bool overflow = false;
  for (int64_t s : sizes) {
    check(s >= 0, "shape: negative size ", s, " in ", *this);
    overflow |= __builtin_mul_overflow(numel_, std::max<int64_t>(s, 1), &numel_);
  }
  check(!overflow, "shape: the element count of ", *this, " does not fit 63 bits");
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) numel_ = 0;
}

int Shape::normalize(int axis) const {
  check(axis >= -rank_ && axis < rank_, "shape: axis ", axis, " is out of range for rank ", rank_, " (", *this, ")");
  return axis < 0 ? axis + rank_ : axis;
}

int64_t Shape::product(int from, int to) const {
  int64_t n = 1;
  for (int i = from; i < to; ++i) n *= sizes_[static_cast<size_t>(i)];
  return n;
}

Shape Shape::with(int axis, int64_t size) const {
  std::vector<int64_t> s(sizes().begin(), sizes().end());
  s[static_cast<size_t>(normalize(axis))] = size;
  return Shape(std::span<const int64_t>(s));
}

std::ostream& operator<<(std::ostream& out, const Shape& s) {
  out << '[';
  for (int i = 0; i < s.rank(); ++i) out << (i ? "," : "") << s.sizes()[static_cast<size_t>(i)];
  return out << ']';
}

Shape broadcast(const Shape& a, const Shape& b, std::string_view who) {
  const int rank = std::max(a.rank(), b.rank());
  std::vector<int64_t> sizes(static_cast<size_t>(rank));
  for (int i = 1; i <= rank; ++i) {
    const int64_t sa = i <= a.rank() ? a[-i] : 1, sb = i <= b.rank() ? b[-i] : 1;
    check(sa == sb || sa == 1 || sb == 1, who, ": shapes ", a, " and ", b, " do not broadcast: axis -", i, " is ", sa,
          " against ", sb);
    sizes[static_cast<size_t>(rank - i)] = sa == 1 ? sb : sa;
  }
  return Shape(std::span<const int64_t>(sizes));
}

}  // namespace ht
