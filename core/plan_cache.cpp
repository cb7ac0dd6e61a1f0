#include "core/plan_cache.h"

#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace ht {

namespace {
using nlohmann::json;
constexpr int kVersion = 2;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}
}  // namespace

std::string cache_folder() {
  if (const std::string own = variable("HALFTONE_CACHE"); !own.empty()) return own;
  if (const std::string xdg = variable("XDG_CACHE_HOME"); !xdg.empty()) return xdg + "/halftone";
  const std::string home = variable("HOME");
  return home.empty() ? "" : home + "/.cache/halftone";
}

std::string plan_file_name(std::string_view library, size_t version, std::string_view gpu) {
  std::string name = str(library, '-', version, '-', gpu);
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.') c = '_';
  return name + ".json";
}

PlanCache& plan_cache(std::string_view library, size_t version, std::string_view gpu) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<PlanCache>> caches;
  const std::lock_guard lock(mutex);
  const std::string name = plan_file_name(library, version, gpu);
  auto& slot = caches[name];
  if (!slot) slot = std::make_unique<PlanCache>(name);
  return *slot;
}

// The entries of a cache file; none when it is missing, corrupt or of another version.
PlanCache::Entries PlanCache::read(const std::string& path) {
  Entries entries;
  std::ifstream in(path);
  try {
    const json file = json::parse(in);
    if (file.at("version") != kVersion) return {};
    for (const auto& [key, value] : file.at("plans").items())
      entries[key] = {parse_tune_mode(value.at("tune").get<std::string>()), value.at("plan").get<std::string>()};
  } catch (const std::exception&) {
    return {};
  }
  return entries;
}

void PlanCache::load() {
  if (std::exchange(loaded_, true)) return;
  if (const std::string folder = cache_folder(); !folder.empty()) entries_ = read(folder + '/' + file_name_);
}

std::optional<std::string> PlanCache::find(const std::string& key) {
  const std::lock_guard lock(mutex_);
  load();
  const auto it = entries_.find(key);
  return it != entries_.end() && it->second.mode >= tune_mode() ? std::optional(it->second.plan) : std::nullopt;
}

std::vector<std::pair<std::string, std::string>> PlanCache::find_all(const std::string& prefix) {
  const std::lock_guard lock(mutex_);
  load();
  std::vector<std::pair<std::string, std::string>> found;
  for (auto it = entries_.lower_bound(prefix); it != entries_.end() && it->first.starts_with(prefix); ++it)
    if (it->second.mode >= tune_mode()) found.emplace_back(it->first, it->second.plan);
  return found;
}

void PlanCache::store(const std::string& key, const std::string& plan) {
  const std::lock_guard lock(mutex_);
  load();
  entries_[key] = {tune_mode(), plan};
  const std::string folder = cache_folder();
  if (folder.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string path = folder + '/' + file_name_, temporary = str(path, '.', getpid());
  json plans = json::object();
  for (auto& [k, theirs] : read(path)) {  // what other processes have found since
    const auto [it, fresh] = entries_.try_emplace(k, theirs);
    if (!fresh && theirs.mode > it->second.mode) it->second = theirs;
  }
  for (const auto& [k, entry] : entries_) plans[k] = {{"tune", name_of(entry.mode)}, {"plan", entry.plan}};
  {
    std::ofstream out(temporary);
    out << json{{"version", kVersion}, {"plans", plans}}.dump(-1, ' ', false, json::error_handler_t::replace);
    if (!out.flush()) {
      std::filesystem::remove(temporary, error);
      return;
    }
  }
  std::filesystem::rename(temporary, path, error);
  if (error) std::filesystem::remove(temporary, error);
}

}  // namespace ht
