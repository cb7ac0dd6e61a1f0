// The sizes of a tensor: rank 0 (a scalar) to 8, zero sizes legal.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>

#include "core/error.h"

namespace ht {

class Shape {
 public:
  static constexpr int kMaxRank = 8;

  Shape() = default;
  // Throws Error on a rank above 8, a negative size, or an element count beyond int64.
  Shape(std::initializer_list<int64_t> sizes) : Shape(std::span(sizes.begin(), sizes.size())) {}
  explicit Shape(std::span<const int64_t> sizes);

  int rank() const { return rank_; }
  int64_t numel() const { return numel_; }
  // Size of an axis; negative counts from the end. Throws Error when out of range.
  int64_t operator[](int axis) const { return sizes_[static_cast<size_t>(normalize(axis))]; }
  int64_t back() const { return (*this)[-1]; }
  // Axis in [0, rank); throws Error when out of range.
  int normalize(int axis) const;
  std::span<const int64_t> sizes() const { return {sizes_.data(), static_cast<size_t>(rank_)}; }
  // Product of the sizes of axes [from, to).
  int64_t product(int from, int to) const;
  // This shape with one axis replaced.
  Shape with(int axis, int64_t size) const;

  friend bool operator==(const Shape& a, const Shape& b) { return a.rank_ == b.rank_ && a.sizes_ == b.sizes_; }

 private:
  std::array<int64_t, kMaxRank> sizes_{};
  int rank_ = 0;
  int64_t numel_ = 1;
};

std::ostream& operator<<(std::ostream& out, const Shape& s);  // "[2,3]"

// NumPy broadcasting of two shapes; throws Error naming `who`.
Shape broadcast(const Shape& a, const Shape& b, std::string_view who);

}  // namespace ht
