#include "models/program.h"

#include <CLI/CLI.hpp>
#include <csignal>
#include <iostream>

#include "core/device.h"
#include "core/error.h"

namespace ht::models {

namespace {
volatile std::sig_atomic_t stop_signal = 0;

void remember(int signal) {
  stop_signal = signal;
  std::signal(signal, SIG_DFL);  // the next one is not caught
}
}  // namespace

std::string_view version() { return HALFTONE_VERSION; }

std::string version_text() { return str("halftone ", version(), cuda_is_built() ? " (CUDA)" : " (CPU only)"); }

std::optional<int> parse(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help, --version
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    std::cerr << app.get_name() << ": " << e.what() << "\nRun with --help for the options.\n";
    return 2;
  }
  return std::nullopt;
}

int run_program(std::string_view name, const std::function<int()>& body) {
  try {
    return body();
  } catch (const std::exception& e) {
    std::cout.flush();
    std::cerr << name << ": error: " << e.what() << std::endl;
    return 1;
  }
}

std::string printable(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
  return text;
}

StopSignals::StopSignals() {
  stop_signal = 0;
  std::signal(SIGINT, remember);
  std::signal(SIGTERM, remember);
}

StopSignals::~StopSignals() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

int StopSignals::received() { return stop_signal; }

}  // namespace ht::models
