#include "core/plan_cache.h"

#include <fcntl.h>
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
constexpr const char* kHeader = R"({"version":3})";

std::string record_of(const std::string& key, TuneMode mode, const std::string& plan) {
  return '\n' + json{{"key", key}, {"tune", name_of(mode)}, {"plan", plan}}.dump(-1, ' ', false,
                                                                                 json::error_handler_t::replace);
}

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
  return name + ".jsonl";
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

std::string PlanCache::path() const {
  const std::string folder = cache_folder();
  return folder.empty() ? "" : folder + '/' + file_name_;
}

bool PlanCache::read() {
  std::ifstream in(path());
  std::string line;
  if (!std::getline(in, line) || line != kHeader) return false;
  while (std::getline(in, line)) {
    try {
      const json record = json::parse(line);
      Entry entry{parse_tune_mode(record.at("tune").get<std::string>()), record.at("plan").get<std::string>()};
      Entry& mine = entries_[record.at("key").get<std::string>()];
      if (entry.mode >= mine.mode) mine = std::move(entry);  // the file's order is that of finding
    } catch (const std::exception&) {                        // torn by a process that was killed, or no record
    }
  }
  return true;
}

void PlanCache::load() {
  if (!std::exchange(loaded_, true)) good_file_ = read();
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
  if (!good_file_ || !append(key)) rewrite();
}

// Each record brings the line end before it, so that one that was torn spoils itself only. One write, which no other
// process's can come between.
bool PlanCache::append(const std::string& key) const {
  const int file = ::open(path().c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (file < 0) return false;
  const std::string record = record_of(key, entries_.at(key).mode, entries_.at(key).plan);
  const bool whole = ::write(file, record.data(), record.size()) == static_cast<ssize_t>(record.size());
  ::close(file);
  return whole;
}

void PlanCache::rewrite() {
  const std::string name = path(), temporary = str(name, '.', getpid());
  if (name.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(cache_folder(), error);
  const Entries mine = std::exchange(entries_, {});
  read();  // what other processes have found since
  for (const auto& [key, entry] : mine)
    if (Entry& there = entries_[key]; entry.mode >= there.mode) there = entry;
  {
    std::ofstream out(temporary);
    out << kHeader;
    for (const auto& [key, entry] : entries_) out << record_of(key, entry.mode, entry.plan);
    good_file_ = bool(out.flush());
  }
  if (good_file_) std::filesystem::rename(temporary, name, error);
  good_file_ = good_file_ && !error;
  if (!good_file_) std::filesystem::remove(temporary, error);
}

}  // namespace ht
