#!/usr/bin/env bash
# Usage: scripts/format.sh [--fix]
#
# Checks that every C++ and CUDA file is as .clang-format wants it, or makes it so with --fix.
# Versions of clang-format differ in small things; Debian 12's clang-format 14 decides.
source "$(dirname "$0")/common.sh"

mode=(--dry-run -Werror)
case ${1:-} in
  '') ;;
  --fix) mode=(-i) ;;
  -h | --help) usage "$PWD/scripts/format.sh" && exit ;;
  *) die "format: unknown option '$1'; see scripts/format.sh --help" ;;
esac
tool=$(command -v clang-format-14 || command -v clang-format) ||
  die 'format: clang-format is not here (Debian: apt-get install clang-format)'
git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cpp' '*.cuh' '*.cu' |
  xargs -0 --no-run-if-empty "$tool" "${mode[@]}" ||
  die 'format: the files above differ from .clang-format; run scripts/format.sh --fix'
