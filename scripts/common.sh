# shellcheck shell=bash
# Sourced by the other scripts: messages, set-up, configure and build. Leaves the shell in the repository's root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '== %s\n' "$*"; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# usage SCRIPT: its leading comment is its help.
usage() { sed -n '2,/^[^#]/{/^#/!d;s/^# \{0,1\}//;p}' "$1"; }

build_dir=${HALFTONE_BUILD:-build}

# configure [cmake options]: makes or refreshes $build_dir.
configure() {
  if [ -f "$build_dir/CMakeCache.txt" ]; then
    cmake "$@" "$build_dir"
  else
    cmake -S . -B "$build_dir" -G Ninja -DCMAKE_BUILD_TYPE=Release "$@"
  fi
}

# build [target ...]: all of it without a target.
build() {
  local targets=()
  [ $# -eq 0 ] || targets=(--target "$@")
  cmake --build "$build_dir" --parallel "$(nproc)" "${targets[@]}"
}
