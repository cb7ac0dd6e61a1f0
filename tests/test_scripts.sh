#!/usr/bin/env bash
# The scripts' help and bad options, and download_cifar10.sh against archives made here (no network).
set -uo pipefail
cd "$(dirname "$0")/.." || exit
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

# expect STATUS TEXT COMMAND...: the command's exit status (or "bad" for any failure) and a piece of its output.
expect() {
  local want=$1 text=$2 output status=0
  shift 2
  output=$("$@" 2>&1 </dev/null) || status=$?
  if [ "$want" = bad ] && [ "$status" -ne 0 ]; then want=$status; fi
  if [ "$status" -ne "$want" ] || [[ $output != *"$text"* ]]; then
    printf 'FAILED: %s\n  wanted status %s and "%s", got status %s and:\n%s\n' "$*" "$want" "$text" "$status" "$output"
    failures=$((failures + 1))
  fi
}

for script in setup train test format gpu_check download_cifar10; do
  expect 0 "Usage: scripts/$script.sh" "scripts/$script.sh" --help
  bash -n "scripts/$script.sh" || failures=$((failures + 1))
done
for script in setup format gpu_check download_cifar10; do
  expect bad "unknown option '--nonsense'" "scripts/$script.sh" --nonsense
done
expect bad "no stage 'tests2'" scripts/gpu_check.sh build tests2
expect bad 'needs a value' scripts/gpu_check.sh --limit
expect bad "'build=soon' is not STAGE=SECONDS" scripts/gpu_check.sh --limit build=soon
expect bad "'tests2=9' is not STAGE=SECONDS" scripts/gpu_check.sh --limit tests2=9
if ! command -v nvidia-smi >/dev/null; then
  expect 0 'SKIPPED (NO GPU ON THIS MACHINE' scripts/gpu_check.sh --logs "$scratch/logs" sanitize benchmark
  expect bad 'not all stages passed' scripts/gpu_check.sh --logs "$scratch/logs" --require-gpu memcheck
fi

if command -v curl >/dev/null; then
  mkdir -p "$scratch/site/cifar-10-batches-bin"
  for name in data_batch_{1..5}.bin test_batch.bin; do head -c 50000 /dev/urandom >"$scratch/site/cifar-10-batches-bin/$name"; done
  archive=$scratch/site/good.tar.gz
  tar -czf "$archive" -C "$scratch/site" cifar-10-batches-bin
  HALFTONE_CIFAR10_URL=file://$archive
  HALFTONE_CIFAR10_SHA256=$(sha256sum "$archive" | cut -d ' ' -f 1)
  export HALFTONE_CIFAR10_URL HALFTONE_CIFAR10_SHA256

  expect 0 'CIFAR-10 is in' scripts/download_cifar10.sh "$scratch/whole"
  cmp "$scratch/whole/cifar-10-batches-bin/test_batch.bin" "$scratch/site/cifar-10-batches-bin/test_batch.bin" ||
    failures=$((failures + 1))
  expect 0 'already' scripts/download_cifar10.sh "$scratch/whole"

  mkdir "$scratch/part"  # cut off in the middle, then whole but not yet checked
  head -c 100000 "$archive" >"$scratch/part/cifar-10-binary.tar.gz.part"
  expect 0 'CIFAR-10 is in' scripts/download_cifar10.sh "$scratch/part"
  mkdir "$scratch/unchecked"
  cp "$archive" "$scratch/unchecked/cifar-10-binary.tar.gz.part"
  expect 0 'CIFAR-10 is in' scripts/download_cifar10.sh "$scratch/unchecked"

  HALFTONE_CIFAR10_SHA256=${HALFTONE_CIFAR10_SHA256/[0-8]/9} \
    expect bad "SHA-256 is wrong" scripts/download_cifar10.sh "$scratch/wrong"
  [ ! -e "$scratch/wrong/cifar-10-binary.tar.gz" ] || { echo 'FAILED: a wrong archive was kept' && failures=$((failures + 1)); }
  HALFTONE_CIFAR10_URL=file://$scratch/nowhere.tar.gz \
    expect bad 'could not fetch' scripts/download_cifar10.sh "$scratch/offline"
  expect bad 'cannot make the folder' scripts/download_cifar10.sh "$archive/folder"
else
  echo 'no curl: the download is not tested'
fi

[ "$failures" -eq 0 ] || exit 1
echo 'all scripts behave'
