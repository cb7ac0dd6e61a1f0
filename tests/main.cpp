// $HALFTONE_TUNE (off, fast, full) sets the tune mode of the CUDA tests: off saves time under compute-sanitizer.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>

#include "core/tuning.h"

int main(int argc, char** argv) {
  if (const char* mode = std::getenv("HALFTONE_TUNE")) ht::set_tune_mode(ht::parse_tune_mode(mode));
  return doctest::Context(argc, argv).run();
}
