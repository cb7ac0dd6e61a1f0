#include "core/plan_cache.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace ht {

namespace {
constexpr int kVersion = 1;
std::atomic<TuneMode> mode{TuneMode::fast};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// The entries of a cache file; none when it is missing, corrupt or of another version.
std::map<std::string, std::string> read_entries(const std::filesystem::path& path) {
  std::ifstream in(path);
  const nlohmann::json json = nlohmann::json::parse(in, nullptr, false);
  std::map<std::string, std::string> entries;
  if (!json.is_object() || json.value("version", 0) != kVersion || !json.contains("plans")) return entries;
  for (const auto& [key, value] : json["plans"].items())
    if (value.is_string()) entries[key] = value.get<std::string>();
  return entries;
}
}  // namespace

void set_tune_mode(TuneMode m) { mode = m; }
TuneMode tune_mode() { return mode; }

TuneMode parse_tune_mode(const std::string& text) {
  if (text == "off") return TuneMode::off;
  if (text == "fast") return TuneMode::fast;
  check(text == "full", "tune: '", text, "' is unknown; use off, fast or full");
  return TuneMode::full;
}

std::string cache_folder() {
  if (const std::string own = variable("HALFTONE_CACHE"); !own.empty()) return own;
  if (const std::string xdg = variable("XDG_CACHE_HOME"); !xdg.empty()) return xdg + "/halftone";
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.cache/halftone";
}

void PlanCache::load() {
  if (std::exchange(loaded_, true)) return;
  const std::string folder = cache_folder();
  if (!folder.empty()) entries_ = read_entries(std::filesystem::path(folder) / file_name_);
}

std::optional<std::string> PlanCache::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  load();
  const auto it = entries_.find(key);
  return it == entries_.end() ? std::nullopt : std::optional(it->second);
}

void PlanCache::store(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  load();
  entries_[key] = value;
  const std::string folder = cache_folder();
  if (folder.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::filesystem::path path = std::filesystem::path(folder) / file_name_;
  for (const auto& [k, v] : read_entries(path)) entries_.try_emplace(k, v);
  const std::filesystem::path temporary = path.string() + "." + std::to_string(getpid());
  {
    std::ofstream out(temporary);
    out << nlohmann::json{{"version", kVersion}, {"plans", entries_}};
    if (!out.flush()) {
      std::filesystem::remove(temporary, error);
      return;
    }
  }
  std::filesystem::rename(temporary, path, error);
}

}  // namespace ht
