#!/usr/bin/env bash
# Usage: scripts/test.sh [--preset NAME] [options of ctest]
#
# Sets up this machine, builds everything and runs all tests; ctest's summary comes last.
#
#   --preset NAME   build and test with a preset of CMakePresets.json: cpu, cuda, asan, tsan or ci
#   --help          this text
#
# All other options go to ctest: -R PATTERN runs some tests, -LE slow leaves out the slow ones.
# Without a preset the build goes to ./build, or to the folder named by HALFTONE_BUILD.
source "$(dirname "$0")/common.sh"

preset=
options=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage "$PWD/scripts/test.sh" && exit ;;
    --preset)
      [ $# -ge 2 ] || die 'test: --preset needs a name: cpu, cuda, asan, tsan or ci'
      preset=$2
      shift
      ;;
    --preset=*) preset=${1#*=} ;;
    *) options+=("$1") ;;
  esac
  shift
done

scripts/setup.sh
if [ -n "$preset" ]; then
  cmake --preset "$preset"
  cmake --build --preset "$preset" --parallel "$(nproc)"
  exec ctest --preset "$preset" --parallel "$(nproc)" "${options[@]}"
fi
configure
build
exec ctest --test-dir "$build_dir" --output-on-failure --parallel "$(nproc)" "${options[@]}"
