// The plan cache on disk: names, what is kept, what counts as empty; and the tuning settings.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "core/context.h"
#include "core/plan_cache.h"
#include "tests/data_helpers.h"

using namespace ht;

namespace {
// A cache folder of this test's own while it lives; tuning is put back after it.
struct CacheFolder : data::TempFolder {
  CacheFolder() { setenv("HALFTONE_CACHE", path.c_str(), 1); }
  ~CacheFolder() {
    unsetenv("HALFTONE_CACHE");
    set_tune_mode(TuneMode::fast);
  }
  std::filesystem::path file() const { return path / "plans.jsonl"; }
  void write(const std::string& text) const { std::ofstream(file()) << text; }
  std::string read() const {
    std::ostringstream text;
    text << std::ifstream(file()).rdbuf();
    return text.str();
  }
};

using Found = std::optional<std::string>;
}  // namespace

TEST_CASE("plan cache: what is stored is found again, by another object too") {
  const CacheFolder folder;
  PlanCache cache("plans.jsonl");
  CHECK(cache.find("conv") == std::nullopt);
  cache.store("conv", "eng4\nwith \"quotes\"");
  cache.store("gemm", "7 8 9");
  cache.store("conv", "eng5");  // a newer one replaces it
  PlanCache other("plans.jsonl");
  CHECK(other.find("conv") == Found("eng5"));
  CHECK(other.find("gemm") == Found("7 8 9"));
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path), {}) == 1);  // no temporary file is left
}

TEST_CASE("plan cache: entries of another process are kept") {
  const CacheFolder folder;
  PlanCache ours("plans.jsonl"), theirs("plans.jsonl");
  CHECK(ours.find("a") == std::nullopt);  // both have read the empty file
  CHECK(theirs.find("a") == std::nullopt);
  ours.store("a", "1");
  theirs.store("b", "2");
  PlanCache later("plans.jsonl");
  CHECK(later.find("a") == Found("1"));
  CHECK(later.find("b") == Found("2"));
}

TEST_CASE("plan cache: groups by the beginning of the key") {
  const CacheFolder folder;
  PlanCache cache("plans.jsonl");
  for (const char* key : {"batch 1: y", "batch 12: x", "batch 1: x", "a", "z"}) cache.store(key, key);
  const auto found = cache.find_all("batch 1: ");
  REQUIRE(found.size() == 2);
  CHECK(found[0].first == "batch 1: x");
  CHECK(found[1].second == "batch 1: y");
  CHECK(cache.find_all("c").empty());
}

TEST_CASE("plan cache: a file that cannot be used counts as empty and is written anew") {
  const CacheFolder folder;
  {
    PlanCache cache("plans.jsonl");
    cache.store("old", "1");
  }
  const std::string good = folder.read();
  const std::vector<std::string> bad{
      "",
      std::string("\0\xff\x13 garbage", 11),
      "[]",
      "42",
      "{}",
      good.substr(0, good.size() / 2),
      R"({"version":2,"plans":{"old":{"tune":"fast","plan":"1"}}})",
      R"({"version":99})"
      "\n"
      R"({"key":"old","tune":"fast","plan":"1"})",
      R"({"version":3})"
      "\n"
      R"({"key":"old","tune":"slow","plan":"1"})",
      R"({"version":3})"
      "\n"
      R"({"key":"old","tune":"fast","plan":7})",
      R"({"version":3})"
      "\n[1,2]\n42\n\n"
      R"({"key":"old"})",
  };
  for (const std::string& text : bad) {
    INFO(text);
    folder.write(text);
    PlanCache cache("plans.jsonl");
    CHECK(cache.find("old") == std::nullopt);
    cache.store("new", "2");
    PlanCache after("plans.jsonl");
    CHECK(after.find("new") == Found("2"));
    CHECK(after.find("old") == std::nullopt);
  }
}

TEST_CASE("plan cache: a line that is torn spoils itself only, and storing adds to the file") {
  const CacheFolder folder;
  PlanCache cache("plans.jsonl");
  cache.store("a", "1");
  cache.store("b", "2");
  const std::string two = folder.read();
  folder.write(two.substr(0, two.size() - 3));
  cache.store("c", "3");
  CHECK(folder.read().starts_with(two.substr(0, two.size() - 3)));
  PlanCache after("plans.jsonl");
  CHECK(after.find("a") == Found("1"));
  CHECK(after.find("b") == std::nullopt);
  CHECK(after.find("c") == Found("3"));
  std::filesystem::remove(folder.file());
  after.store("d", "4");  // the file has gone: all that is known comes back
  PlanCache last("plans.jsonl");
  for (const char* key : {"a", "c", "d"}) CHECK(last.find(key).has_value());
}

TEST_CASE("plan cache: bytes that are no text do no harm") {
  const CacheFolder folder;
  PlanCache cache("plans.jsonl");
  cache.store("odd", "\xff\xfe");
  cache.store("good", "1");
  PlanCache after("plans.jsonl");
  CHECK(after.find("good") == Found("1"));
  CHECK(after.find("odd").has_value());
}

TEST_CASE("plan cache: a more thorough mode does not take what a hasty one found") {
  const CacheFolder folder;
  set_tune_mode(TuneMode::off);
  PlanCache cache("plans.jsonl");
  cache.store("p", "first");
  CHECK(cache.find("p") == Found("first"));
  set_tune_mode(TuneMode::fast);
  CHECK(cache.find("p") == std::nullopt);
  CHECK(cache.find_all("p").empty());
  cache.store("p", "few");
  set_tune_mode(TuneMode::full);
  CHECK(PlanCache("plans.jsonl").find("p") == std::nullopt);
  PlanCache other("plans.jsonl");
  other.store("p", "best");
  for (const TuneMode mode : {TuneMode::off, TuneMode::fast, TuneMode::full}) {
    set_tune_mode(mode);
    CHECK(PlanCache("plans.jsonl").find("p") == Found("best"));
  }
  // A process that knows the hasty plan only, and stores something else, keeps the better one of the file.
  set_tune_mode(TuneMode::fast);
  CHECK(cache.find("p") == Found("few"));
  cache.store("q", "1");
  CHECK(PlanCache("plans.jsonl").find("p") == Found("best"));
}

TEST_CASE("plan cache: a folder that cannot be written costs the file only") {
  const CacheFolder folder;
  std::ofstream(folder.path / "taken") << "a file";
  setenv("HALFTONE_CACHE", (folder.path / "taken" / "below").c_str(), 1);
  PlanCache cache("plans.jsonl");
  cache.store("a", "1");
  CHECK(cache.find("a") == Found("1"));
  CHECK(PlanCache("plans.jsonl").find("a") == std::nullopt);
}

TEST_CASE("plan cache: threads share it") {
  const CacheFolder folder;
  PlanCache cache("plans.jsonl");
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&cache, t] {
        for (int i = 0; i < 8; ++i) {
          cache.store(str(t, ' ', i), "x");
          cache.find(str(t, ' ', i));
        }
      });
  }
  CHECK(PlanCache("plans.jsonl").find_all("").size() == 32);
}

TEST_CASE("plan cache: one object and one plain file name a library and GPU") {
  CHECK(plan_file_name("cudnn", 91900, "NVIDIA H200") == "cudnn-91900-NVIDIA_H200.jsonl");
  CHECK(plan_file_name("cublaslt", 130100, "A/B (x)\n$é") == "cublaslt-130100-A_B__x_____.jsonl");
  CHECK(&plan_cache("cudnn", 91900, "NVIDIA H200") == &plan_cache("cudnn", 91900, "NVIDIA H200"));
  CHECK(&plan_cache("cudnn", 91900, "NVIDIA H200") != &plan_cache("cudnn", 91900, "NVIDIA H100"));
}

TEST_CASE("tuning: modes, deterministic mode, the choices") {
  for (const TuneMode mode : {TuneMode::off, TuneMode::fast, TuneMode::full})
    CHECK(parse_tune_mode(name_of(mode)) == mode);
  CHECK(error_of([] { parse_tune_mode("Fast"); }) == "tune: 'Fast' is unknown; use off, fast or full");
  for (const MemoryMode mode : {MemoryMode::speed, MemoryMode::low}) CHECK(parse_memory_mode(name_of(mode)) == mode);
  CHECK(error_of([] { parse_memory_mode("Low"); }) == "memory: 'Low' is unknown; use speed or low");
  set_tune_mode(TuneMode::full);
  set_deterministic(true);
  CHECK(tune_mode() == TuneMode::off);  // nothing is timed, so that every run takes the same plans
  set_deterministic(false);
  CHECK(tune_mode() == TuneMode::full);
  set_tune_mode(TuneMode::fast);

  note_plan({"conv a", "eng1", false});
  note_plan({"conv b", "eng2", true});
  note_plan({"conv a", "eng3", true});
  const auto choices = plan_choices();
  REQUIRE(choices.size() == 2);
  CHECK(choices[0].problem == "conv a");
  CHECK(choices[0].plan == "eng3");
  CHECK(choices[0].tensor_cores);
  CHECK(choices[1].plan == "eng2");
}
