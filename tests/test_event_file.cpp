// TensorBoard's event files: the CRC, what a reader in Python finds in them, folders that cannot be written.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "core/error.h"
#include "models/event_file.h"

using namespace ht;

TEST_CASE("CRC-32C: the check value of the catalogue, and RFC 3720's") {
  CHECK(models::crc32c("123456789") == 0xE3069283u);
  CHECK(models::crc32c("") == 0);
  CHECK(models::crc32c(std::string(32, '\0')) == 0x8A9136AAu);
  CHECK(models::crc32c(std::string(32, '\xff')) == 0x62A8AB43u);
}

TEST_CASE("an independent reader finds the scalars, CRCs checked") {
  const auto folder = std::filesystem::temp_directory_path() / str("halftone_test_events_", getpid());
  {
    models::EventFile events(folder / "run");
    events.scalar("step/loss", 2.5, 1);
    events.scalar("step/lr", 0.125, 300);
    events.scalar(std::string(200, 't'), -1e30, 123456789012);
  }
  for (const auto& file : std::filesystem::directory_iterator(folder / "run")) {
    CHECK(file.path().filename().string().starts_with("events.out.tfevents."));
    const std::string command =
        str("python3 ", HT_SOURCE_DIR, "/tests/read_events.py '", file.path().string(), "' 2>&1");
    FILE* pipe = popen(command.c_str(), "r");
    REQUIRE(pipe);
    std::string out;
    for (int c; (c = std::fgetc(pipe)) != EOF;) out += static_cast<char>(c);
    const bool without_python = WEXITSTATUS(pclose(pipe)) == 127;
    if (without_python) {
      MESSAGE("SKIPPED: no python3");
      continue;
    }
    CHECK(out == str("1 step/loss 2.5\n300 step/lr 0.125\n123456789012 ", std::string(200, 't'), " -1e+30\n"));
  }
  std::filesystem::remove_all(folder);
  CHECK_THROWS_AS(models::EventFile("/proc/none"), Error);
}
