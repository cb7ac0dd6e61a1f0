// What every program of the house shares: version, command line, exit codes, signals.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace ht::models {

std::string_view version();  // "0.1.0"
std::string version_text();  // "halftone 0.1.0 (CPU only)"

// Parses; the exit code when the program should stop: 0 after --help or --version, 2 after bad usage (told on stderr).
std::optional<int> parse(CLI::App& app, int argc, const char* const* argv);

// Runs `body` and returns its exit code; an exception is told on stderr as "<name>: error: ..." and gives 1.
int run_program(std::string_view name, const std::function<int()>& body);

// A file's text for a terminal: without characters that move its cursor.
std::string printable(std::string text);

// While alive, SIGINT and SIGTERM only set a flag (a second one ends the process as usual).
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  static int received();  // the signal's number; 0: none yet
  explicit operator bool() const { return received() != 0; }
};

}  // namespace ht::models
