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

// A string map kept as one file of JSON lines in $HALFTONE_CACHE, else $XDG_CACHE_HOME/halftone, else
// ~/.cache/halftone: a version, then a plan a line. A missing file or one of another version counts as empty and is
// written anew, a line that is damaged as missing; a folder that cannot be written costs speed only. Each plan stands
// with the tune mode that found it: for a more thorough mode it is not good enough.
class PlanCache {
 public:
  explicit PlanCache(std::string file_name) : file_name_(std::move(file_name)) {}
  std::optional<std::string> find(const std::string& key);
  // All keys that begin with `prefix`, with their plans.
  std::vector<std::pair<std::string, std::string>> find_all(const std::string& prefix);
  // Keeps the plan and appends it to the file, which other processes may do, too.
  void store(const std::string& key, const std::string& plan);

 private:
  struct Entry {
    TuneMode mode;
    std::string plan;
  };
  using Entries = std::map<std::string, Entry>;
  std::string path() const;  // empty when there is no folder
  bool read();               // adds what the file has; false: it must be written anew
  bool append(const std::string& key) const;
  void rewrite();
  void load();

  std::string file_name_;
  std::mutex mutex_;
  bool loaded_ = false, good_file_ = false;
  Entries entries_;
};

// The cache of a library's version on a kind of GPU; the same object each time.
PlanCache& plan_cache(std::string_view library, size_t version, std::string_view gpu);
// Its file: "cudnn-91900-NVIDIA_H200.jsonl". Characters that a shell might mind become '_'.
std::string plan_file_name(std::string_view library, size_t version, std::string_view gpu);

// The folder above; empty when there is no home.
std::string cache_folder();

}  // namespace ht
