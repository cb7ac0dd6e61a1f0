// Remembers on disk what was found by timing (cuDNN plans, GEMM algorithms), so that only a program's first run
// searches.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace ht {

// How long to search for the fastest plan of a new problem: none (first that works), a few candidates, or all.
enum class TuneMode : uint8_t { off, fast, full };
void set_tune_mode(TuneMode mode);
TuneMode tune_mode();
TuneMode parse_tune_mode(const std::string& text);  // "off", "fast", "full"; throws Error otherwise

// A string map kept as one JSON file in $HALFTONE_CACHE, else $XDG_CACHE_HOME/halftone, else ~/.cache/halftone. A
// missing, corrupt or older file counts as empty and is written anew; a folder that cannot be written costs speed only.
class PlanCache {
 public:
  explicit PlanCache(std::string file_name) : file_name_(std::move(file_name)) {}
  std::optional<std::string> find(const std::string& key);
  // Keeps the entry and writes the file: a temporary name, then rename. Entries of other processes are kept.
  void store(const std::string& key, const std::string& value);

 private:
  void load();

  std::string file_name_;
  std::mutex mutex_;
  bool loaded_ = false;
  std::map<std::string, std::string> entries_;
};

// The folder above; empty when there is no home.
std::string cache_folder();

}  // namespace ht
