#include "core/tensor.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <ostream>

#include "core/allocator.h"
#include "core/build.h"
#include "core/captured_step.h"
#include "core/copy.h"
#include "core/parallel.h"

namespace ht {

struct Tensor::Storage {
  Storage(size_t bytes, Device d) : device(d), ptr(allocate(bytes, d)) {}
  ~Storage() { deallocate(ptr, device); }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  Device device;
  void* ptr;
  std::atomic<uint64_t> version{0};
};

namespace {
void convert_cpu(const Tensor& from, const Tensor& to) {
  dispatch_all(from.dtype(), [&]<class From>() {
    dispatch_all(to.dtype(), [&]<class To>() {
      const From* in = from.data<From>();
      To* out = to.data<To>();
      parallel_for(from.numel(), 1 << 15, [=](int64_t begin, int64_t end) {
        constexpr bool kFromHalf = std::is_same_v<From, Half> || std::is_same_v<From, BFloat16>;
        constexpr bool kToHalf = std::is_same_v<To, Half> || std::is_same_v<To, BFloat16>;
        if constexpr (kFromHalf && std::is_same_v<To, float>) {
          to_float(in + begin, out + begin, end - begin);
        } else if constexpr (std::is_same_v<From, float> && kToHalf) {
          from_float(in + begin, out + begin, end - begin);
        } else {
          for (int64_t i = begin; i < end; ++i) out[i] = convert_element<To>(in[i]);
        }
      });
    });
  });
}
}  // namespace

Tensor Tensor::empty(const Shape& shape, DType dtype, Device device) {
  Tensor t;
  t.shape_ = shape;
  t.dtype_ = dtype;
  check(shape.numel() < (int64_t{1} << 58), "tensor: out of memory: shape ", shape, " has ", shape.numel(),
        " elements");
  t.storage_ = std::make_shared<Storage>(static_cast<size_t>(shape.numel()) * size_of(dtype), device);
  t.data_ = t.storage_->ptr;
  return t;
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, Device device) {
  Tensor t = empty(shape, dtype, device);
  t.zero_();
  return t;
}

Tensor Tensor::full(const Shape& shape, double value, DType dtype, Device device) {
  Tensor t = empty(shape, dtype, device);
  t.fill_(value);
  return t;
}

Tensor Tensor::from(std::span<const double> values, const Shape& shape, DType dtype) {
  return of<double>(values, shape).to(dtype);
}

Tensor Tensor::normal(const Shape& shape, PhiloxStream stream, double mean, double std, DType dtype) {
  Tensor t = empty(shape, DType::f64);
  double* p = t.data<double>();
  parallel_for(t.numel(), 1 << 12, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) p[i] = mean + std * stream.normal(static_cast<uint64_t>(i));
  });
  return t.to(dtype);
}

Tensor Tensor::uniform(const Shape& shape, PhiloxStream stream, double low, double high, DType dtype) {
  const Tensor t = empty(shape, dtype);
  dispatch_all(dtype, [&]<class T>() {
    T* p = t.data<T>();
    parallel_for(t.numel(), 1 << 12, [=](int64_t begin, int64_t end) {
      Philox4 bits{};  // numbers i / 4 * 4 to i / 4 * 4 + 3
      for (int64_t i = begin; i < end; ++i) {
        if (i % 4 == 0 || i == begin) bits = stream.block(static_cast<uint64_t>(i / 4));
        p[i] = convert_element<T>(low + (high - low) * to_uniform(bits[static_cast<size_t>(i % 4)]));
      }
    });
  });
  return t;
}

void* Tensor::storage_data() const { return storage_ ? storage_->ptr : nullptr; }

Device Tensor::device() const { return storage_ ? storage_->device : Device::cpu(); }

double Tensor::at(int64_t i) const {
  check(defined() && i >= 0 && i < numel(), "tensor: index ", i, " is out of range (", *this, ")");
  Tensor element = *this;
  element.shape_ = {};
  element.data_ = static_cast<char*>(data_) + static_cast<size_t>(i) * size_of(dtype_);
  element = element.to(Device::cpu());
  return dispatch_all(dtype_, [&]<class T>() { return convert_element<double>(*element.data<T>()); });
}

double Tensor::item() const {
  check(defined() && numel() == 1, "tensor: item() needs exactly one element (", *this, ")");
  return at(0);
}

std::vector<double> Tensor::to_vector() const {
  const Tensor d = to(Device::cpu()).to(DType::f64);
  return {d.data<double>(), d.data<double>() + d.numel()};
}

Tensor Tensor::view(const Shape& shape) const {
  check(defined() && shape.numel() == numel(), "view: shape ", shape, " has ", shape.numel(),
        " elements, the tensor has ", numel(), " (", *this, ")");
  Tensor t = *this;
  t.shape_ = shape;
  return t;
}

Tensor Tensor::reshape(const std::vector<int64_t>& sizes) const {
  std::vector<int64_t> s = sizes;
  int64_t known = 1;
  int open = -1;
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] != -1) {
      if (__builtin_mul_overflow(known, s[i], &known)) known = -1;  // fits nothing; view says so
      continue;
    }
    check(open < 0, "reshape: more than one size is -1 (", *this, ")");
    open = static_cast<int>(i);
  }
  if (open >= 0) {
    check(known > 0 && numel() % known == 0, "reshape: ", numel(), " elements cannot be split by ", known, " (", *this,
          ")");
    s[static_cast<size_t>(open)] = numel() / known;
  }
  return view(Shape(std::span<const int64_t>(s)));
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  check(rank() > 0 && begin >= 0 && begin <= end && end <= dim(0), "rows: [", begin, ", ", end, ") is out of range (",
        *this, ")");
  Tensor t = *this;
  t.shape_ = shape_.with(0, end - begin);
  const size_t row = static_cast<size_t>(shape_.product(1, rank())) * size_of(dtype_);
  t.data_ = static_cast<char*>(data_) + static_cast<size_t>(begin) * row;
  return t;
}

Tensor Tensor::clone() const {
  Tensor t = empty_like(*this);
  t.copy_(*this);
  return t;
}

Tensor Tensor::to(DType dtype) const {
  if (dtype == dtype_) return *this;
  Tensor t = empty(shape_, dtype, device());
  t.copy_(*this);
  return t;
}

Tensor Tensor::to(Device device) const {
  if (device == this->device()) return *this;
  Tensor t = empty(shape_, dtype_, device);
  t.copy_(*this);
  return t;
}

void Tensor::copy_(const Tensor& from) const {
  check(defined() && from.defined() && shape_ == from.shape_, "copy_: shapes differ (to ", *this, ", from ", from, ")");
  if (numel() == 0) return;
  if (!device().is_cuda() && !from.device().is_cuda()) {
    if (dtype_ == from.dtype_) {
      std::memmove(data_, from.data_, bytes());
    } else {
      convert_cpu(from, *this);
    }
  } else if constexpr (kCudaBuild) {
    copy_cuda(from, *this);
  }
  bump_version();
}

void Tensor::fill_(double value) const {
  check(defined(), "fill_: the tensor is undefined");
  if (device().is_cuda()) {
    if constexpr (kCudaBuild) fill_cuda(*this, value);
  } else {
    dispatch_all(dtype_, [&]<class T>() { std::fill_n(data<T>(), numel(), convert_element<T>(value)); });
  }
  bump_version();
}

void Tensor::zero_() const { fill_(0); }

uint64_t Tensor::version() const { return storage_ ? storage_->version.load(std::memory_order_relaxed) : 0; }
void Tensor::bump_version() const {
  if (!storage_) return;
  storage_->version.fetch_add(1, std::memory_order_relaxed);
  if (is_recording())
    on_replay([weak = std::weak_ptr(storage_)] {
      if (const auto storage = weak.lock()) storage->version.fetch_add(1, std::memory_order_relaxed);
    });
}
bool Tensor::unique() const { return storage_.use_count() == 1; }

std::ostream& operator<<(std::ostream& out, const Tensor& t) {
  if (!t.defined()) return out << "undefined";
  return out << t.shape() << ' ' << t.dtype() << ' ' << t.device();
}

std::ostream& operator<<(std::ostream& out, const Named& n) { return out << n.name << ' ' << n.tensor; }

}  // namespace ht
