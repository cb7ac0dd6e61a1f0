// A Tensor is plain data: a handle to refcounted, contiguous, row-major storage with a shape, a dtype and a device. It
// knows nothing of gradients (see autograd/var.h). Copying a Tensor copies the handle; clone() copies the data.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "core/philox.h"
#include "core/shape.h"

namespace ht {

struct TensorSpec {
  Shape shape;
  DType dtype = DType::f32;
};

class Tensor {
 public:
  Tensor() = default;  // undefined: no storage

  // Uninitialised. Throws Error when memory runs out.
  static Tensor empty(const Shape& shape, DType dtype = DType::f32, Device device = Device::cpu());
  static Tensor empty(const TensorSpec& spec, Device device) { return empty(spec.shape, spec.dtype, device); }
  static Tensor empty_like(const Tensor& t) { return empty(t.shape(), t.dtype(), t.device()); }
  static Tensor zeros(const Shape& shape, DType dtype = DType::f32, Device device = Device::cpu());
  static Tensor full(const Shape& shape, double value, DType dtype = DType::f32, Device device = Device::cpu());
  // Copies `values` (row-major, as many as the shape has; throws Error otherwise), converted to `dtype`.
  static Tensor from(std::span<const double> values, const Shape& shape, DType dtype = DType::f32);
  static Tensor from(std::initializer_list<double> values, const Shape& shape, DType dtype = DType::f32) {
    return from(std::span(values.begin(), values.size()), shape, dtype);
  }
  // A copy of `values` in their own type.
  template <class T>
  static Tensor of(std::span<const T> values, const Shape& shape) {
    check(static_cast<int64_t>(values.size()) == shape.numel(), "tensor: ", values.size(), " values for shape ", shape);
    Tensor t = empty(shape, dtype_of<T>());
    std::copy(values.begin(), values.end(), t.data<T>());
    return t;
  }
  // Normal(mean, std) and uniform [low, high): element i takes number i of the stream. CPU.
  static Tensor normal(const Shape& shape, PhiloxStream stream, double mean = 0, double std = 1,
                       DType dtype = DType::f32);
  static Tensor uniform(const Shape& shape, PhiloxStream stream, double low = 0, double high = 1,
                        DType dtype = DType::f32);

  bool defined() const { return storage_ != nullptr; }
  explicit operator bool() const { return defined(); }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  int64_t dim(int axis) const { return shape_[axis]; }
  int64_t numel() const { return shape_.numel(); }
  size_t bytes() const { return static_cast<size_t>(numel()) * size_of(dtype_); }
  DType dtype() const { return dtype_; }
  Device device() const;
  TensorSpec spec() const { return {shape_, dtype_}; }

  void* data() const { return data_; }
  void* storage_data() const;  // where the storage begins, of which this may be a part
  // Typed pointer to the first element; throws Error when T is not the tensor's dtype.
  template <class T>
  T* data() const {
    check(dtype_ == dtype_of<T>(), "tensor: data<", dtype_of<T>(), ">() on ", *this);
    return static_cast<T*>(data_);
  }
  // One element as double, by flat index; from a CUDA tensor this waits for the device. Throws Error out of range.
  double at(int64_t i) const;
  double item() const;  // the only element; throws Error when there is not exactly one
  std::vector<double> to_vector() const;

  // Views share the storage. reshape takes one -1; rows takes [begin, end) of axis 0. Both throw Error when they don't
  // fit.
  Tensor reshape(const std::vector<int64_t>& sizes) const;
  Tensor view(const Shape& shape) const;
  Tensor rows(int64_t begin, int64_t end) const;

  // Copies. `to` returns the same handle when nothing changes.
  Tensor clone() const;
  Tensor to(DType dtype) const;
  Tensor to(Device device) const;

  // Writes; each raises the version. copy_ converts dtype and device; shapes must agree. Floating to integer rounds
  // towards zero, out of range gives the nearest limit, NaN gives 0.
  void copy_(const Tensor& from) const;
  void fill_(double value) const;
  void zero_() const;

  // Counts writes to the storage, shared by all its views. Whoever writes through data() must call bump_version, so
  // that a backward that saved the old values notices.
  uint64_t version() const;
  void bump_version() const;
  // True when no other handle shares this storage.
  bool unique() const;
  bool same_storage(const Tensor& other) const { return storage_ && storage_ == other.storage_; }

  friend std::ostream& operator<<(std::ostream& out, const Tensor& t);  // "[2,3] f32 cpu"

 private:
  struct Storage;

  std::shared_ptr<Storage> storage_;
  void* data_ = nullptr;
  Shape shape_;
  DType dtype_ = DType::f32;
};

// "x [2,3] f32 cpu" for error texts; formatted only when printed.
struct Named {
  std::string_view name;
  const Tensor& tensor;
};
std::ostream& operator<<(std::ostream& out, const Named& n);

}  // namespace ht
