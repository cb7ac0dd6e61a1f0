#!/usr/bin/env bash
# Usage: scripts/setup.sh [--check]
#
# Installs what Halftone is built with: a compiler, CMake, Ninja, ccache, Eigen, nlohmann-json, CLI11, doctest,
# Python 3 (for checks of the source tree), curl (for --download), libpng and libjpeg (for pictures to predict from).
# Installs by apt-get when root or with sudo; otherwise names what is missing and stops, unless only libpng and libjpeg
# are, which can be done without. Does nothing where all is there.
#
#   --check   only say what is missing (exit status 1 if anything is)
#   --help    this text
#
# Headers may also lie in folders named by CPATH or HALFTONE_EXTRA_INCLUDE (colon-separated).
source "$(dirname "$0")/common.sh"

check_only=
case ${1:-} in
  '') ;;
  --check) check_only=yes ;;
  -h | --help) usage "$PWD/scripts/setup.sh" && exit ;;
  *) die "setup: unknown option '$1'; see scripts/setup.sh --help" ;;
esac

has_header() {
  local folder
  for folder in /usr/include /usr/include/eigen3 /usr/local/include /usr/local/include/eigen3 \
    $(tr ':;' '  ' <<<"${HALFTONE_EXTRA_INCLUDE:-}:${CPATH:-}"); do
    if [ -e "$folder/$1" ] || [ -e "$folder/eigen3/$1" ]; then return 0; fi
  done
  return 1
}

missing=()
optional=()
need_command() { command -v "$1" >/dev/null || missing+=("$2"); }
need_header() { has_header "$1" || missing+=("$2"); }
need_command "${CXX:-c++}" g++
need_command cmake cmake
need_command ninja ninja-build
need_command ccache ccache
need_command python3 python3
need_command curl curl
need_header Eigen/Core libeigen3-dev
need_header nlohmann/json.hpp nlohmann-json3-dev
need_header CLI/CLI.hpp libcli11-dev
need_header doctest/doctest.h doctest-dev
has_header png.h || optional+=(libpng-dev)
has_header jpeglib.h || optional+=(libjpeg-dev)

if [ ${#missing[@]} -gt 0 ] || [ ${#optional[@]} -gt 0 ]; then
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then as_root=(sudo); fi
  if [ -n "$check_only" ]; then
    printf 'missing (Debian package names):'
    printf ' %s' "${missing[@]}" "${optional[@]}"
    printf '\n'
    exit 1
  fi
  all=("${missing[@]}" "${optional[@]}")
  why='it needs apt-get, and root or sudo'
  installed=
  if command -v apt-get >/dev/null && { [ ${#as_root[@]} -eq 0 ] || command -v sudo >/dev/null; }; then
    say "installing ${all[*]}"
    export DEBIAN_FRONTEND=noninteractive
    why="apt-get's words are above"
    if "${as_root[@]}" apt-get update -qq &&
      "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${all[@]}" >/dev/null; then
      installed=yes
    fi
  fi
  if [ -z "$installed" ] && [ ${#missing[@]} -gt 0 ]; then
    die "setup: these are missing and this script cannot install them ($why):
  ${missing[*]}
These are Debian's package names. Install them your way, then run this again; header-only libraries may also be unpacked
anywhere, with HALFTONE_EXTRA_INCLUDE naming the folder."
  fi
  [ -n "$installed" ] || say "going on without ${optional[*]} ($why): pictures of such kinds cannot be read"
fi

version=$(cmake --version | sed -n '1s/[^0-9]*//p')
[ "$(printf '3.25\n%s\n' "$version" | sort -V | head -n 1)" = 3.25 ] ||
  die "setup: CMake $version is too old; Halftone needs 3.25 or newer (Debian 12, or cmake.org)"
[ -z "$check_only" ] || echo 'nothing is missing'
