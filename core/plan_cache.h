// Remembers on disk what was found by timing (cuDNN plans, GEMM algorithms), so that only a program's first run
// searches.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/tuning.h"

namespace ht {

// A string map kept as one JSON file in $HALFTONE_CACHE, else $XDG_CACHE_HOME/halftone, else ~/.cache/halftone. A
// missing, corrupt or older file counts as empty and is written anew; a folder that cannot be written costs speed only.
// Each plan stands with the tune mode that found it: for a more thorough mode it is not good enough.
class PlanCache {
 public:
  explicit PlanCache(std::string file_name) : file_name_(std::move(file_name)) {}
  std::optional<std::string> find(const std::string& key);
  // All keys that begin with `prefix`, with their plans.
  std::vector<std::pair<std::string, std::string>> find_all(const std::string& prefix);
  // Keeps the plan and writes the file: a temporary name, then rename. Entries of other processes are kept.
  void store(const std::string& key, const std::string& plan);

 private:
  struct Entry {
    TuneMode mode;
    std::string plan;
  };
  using Entries = std::map<std::string, Entry>;
  static Entries read(const std::string& path);
  void load();

  std::string file_name_;
  std::mutex mutex_;
  bool loaded_ = false;
  Entries entries_;
};

// The cache of a library's version on a kind of GPU; the same object each time.
PlanCache& plan_cache(std::string_view library, size_t version, std::string_view gpu);
// Its file: "cudnn-91900-NVIDIA_H200.json". Characters that a shell might mind become '_'.
std::string plan_file_name(std::string_view library, size_t version, std::string_view gpu);

// The folder above; empty when there is no home.
std::string cache_folder();

}  // namespace ht
