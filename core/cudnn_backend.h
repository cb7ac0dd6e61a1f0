// What the two halves of the cuDNN wrapper share: backend descriptors, and the graphs made of them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/cudnn_check.h"
#include "core/cudnn_graph.h"

namespace ht {

// Owns one backend descriptor.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    cudnn_check(cudnnBackendCreateDescriptor(type, &raw_), "cudnnBackendCreateDescriptor");
  }
  ~Descriptor() {
    if (raw_) cudnnBackendDestroyDescriptor(raw_);
  }
  Descriptor(Descriptor&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  cudnnBackendDescriptor_t raw() const { return raw_; }
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void* data) {
    cudnn_check(cudnnBackendSetAttribute(raw_, name, type, count, data), "cudnnBackendSetAttribute");
    return *this;
  }
  Descriptor& set(cudnnBackendAttributeName_t name, int64_t v) { return set(name, CUDNN_TYPE_INT64, 1, &v); }
  Descriptor& set(cudnnBackendAttributeName_t name, bool v) { return set(name, CUDNN_TYPE_BOOLEAN, 1, &v); }
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnDataType_t v) {
    return set(name, CUDNN_TYPE_DATA_TYPE, 1, &v);
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& d) {
    const cudnnBackendDescriptor_t raw = d.raw();
    return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw);
  }
  Descriptor& finalize() {
    cudnn_check(cudnnBackendFinalize(raw_), "cudnnBackendFinalize");
    return *this;
  }
  int64_t count(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type) const {
    int64_t n = 0;
    cudnn_check(cudnnBackendGetAttribute(raw_, name, type, 0, &n, nullptr), "cudnnBackendGetAttribute");
    return n;
  }
  // Reads up to `room` values; returns how many there were.
  int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t room, void* out) const {
    int64_t n = 0;
    cudnn_check(cudnnBackendGetAttribute(raw_, name, type, room, &n, out), "cudnnBackendGetAttribute");
    return n;
  }

 private:
  cudnnBackendDescriptor_t raw_ = nullptr;
};

struct CudnnGraph::State {
  std::vector<Descriptor> tensors, parts, operations;
  std::vector<int64_t> real_uids;  // in order of addition: the order of execute's pointers
};

}  // namespace ht
