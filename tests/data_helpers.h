// Small data sets and folders for the tests of data/.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "tests/error_of.h"

namespace ht::data {

// A folder of its own that vanishes with the test.
struct TempFolder {
  std::filesystem::path path;
  TempFolder() {
    static std::atomic<int> count{0};
    path = std::filesystem::temp_directory_path() / str("halftone-test-", getpid(), "-", count++);
    std::filesystem::create_directories(path);
  }
  ~TempFolder() {
    std::error_code error;
    std::filesystem::remove_all(path, error);
  }
};

inline std::vector<std::string> ten_names() { return {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}; }

// n images whose bytes are Philox numbers; image i has label (3 * i) % 10.
inline ImageDataset random_set(int64_t n, int64_t h = 32, int64_t w = 32, uint64_t seed = 7) {
  ImageDataset set{Tensor::empty({n, h, w, 3}, DType::u8), Tensor::empty({n}, DType::i32), ten_names(), "random"};
  const PhiloxStream random{seed, 0};
  for (int64_t i = 0; i < set.images.numel(); ++i)
    set.images.data<uint8_t>()[i] = static_cast<uint8_t>(random.bits(static_cast<uint64_t>(i)));
  for (int64_t i = 0; i < n; ++i) set.labels.data<int32_t>()[i] = static_cast<int32_t>(3 * i % 10);
  return set;
}

// n images of 4x4 pixels, all bytes of image i being i; n up to 256, so that a batch shows which images it holds.
inline ImageDataset numbered_set(int64_t n) {
  ImageDataset set = random_set(n, 4, 4);
  for (int64_t i = 0; i < n; ++i) std::memset(set.images.data<uint8_t>() + i * 48, static_cast<int>(i), 48);
  return set;
}

inline bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         (a.bytes() == 0 || !std::memcmp(a.data(), b.data(), a.bytes()));
}

}  // namespace ht::data
