// Tensors in a file, in the safetensors format (github.com/huggingface/safetensors), which PyTorch and others read:
//   u64 n, little endian | n bytes of JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...,
//   "__metadata__": {"text": "text"}} | the tensors' bytes, row-major, without a hole
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>

#include "core/tensor.h"

namespace ht {

using Metadata = std::map<std::string, std::string>;

// Writes all of it under a temporary name beside `path`, brings it to the disk, then renames: at every moment `path` is
// the old file or the whole new one. Throws Error naming the file and the cause (no such folder, not allowed, disk
// full), and then leaves nothing behind. The same content gives the same bytes. Tensors may be on any device.
void save_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors,
                      const Metadata& metadata = {});

// A file, mapped into memory. The constructor trusts nothing in it: every rule of the format is checked, and a file
// that breaks one is an Error naming file, tensor and fact. Takes memory in proportion to the header only; a tensor's
// bytes are read when asked for. Files may be replaced (renamed over) while open, but not cut short in place.
class SafeTensors {
 public:
  struct Entry {
    TensorSpec spec;
    size_t begin = 0, end = 0;  // bytes, from the header's end
  };

  explicit SafeTensors(const std::string& path);
  ~SafeTensors();
  SafeTensors(const SafeTensors&) = delete;
  SafeTensors& operator=(const SafeTensors&) = delete;

  const std::string& path() const { return path_; }
  const Metadata& metadata() const { return metadata_; }
  const std::map<std::string, Entry>& entries() const { return entries_; }
  size_t file_bytes() const { return size_; }

  // The bytes where they lie in the mapped file, valid as long as this object; maybe not aligned to the dtype.
  std::span<const std::byte> bytes(const std::string& name) const;  // throws Error on an unknown name
  // Copies on the CPU: of one tensor, and of those whose names begin with `prefix`, which their new names lack.
  Tensor tensor(const std::string& name) const;
  std::map<std::string, Tensor> tensors(const std::string& prefix = {}) const;

 private:
  void check_offsets() const;

  std::string path_;
  Metadata metadata_;
  std::map<std::string, Entry> entries_;
  std::byte* map_ = nullptr;
  size_t size_ = 0, data_begin_ = 0;
};

}  // namespace ht
