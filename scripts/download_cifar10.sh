#!/usr/bin/env bash
# Usage: scripts/download_cifar10.sh [FOLDER]
#
# Fetches the official CIFAR-10 archive (binary version, 162 MiB) to FOLDER (data-cifar10), checks its SHA-256 and
# unpacks it. A download that was cut off goes on where it stopped; what is there already is not fetched again.
# The files are then in FOLDER/cifar-10-batches-bin.
source "$(dirname "$0")/common.sh"

# The two variables are for tests and mirrors.
url=${HALFTONE_CIFAR10_URL:-https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz}
sha256=${HALFTONE_CIFAR10_SHA256:-c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd}

case ${1:-} in
  -h | --help) usage "$PWD/scripts/download_cifar10.sh" && exit ;;
  -*) die "download: unknown option '$1'; see scripts/download_cifar10.sh --help" ;;
esac
[ $# -le 1 ] || die "download: one folder at most, $# given"
folder=${1:-data-cifar10}
archive=$folder/cifar-10-binary.tar.gz
files=$folder/cifar-10-batches-bin
names=(data_batch_{1..5}.bin test_batch.bin)

complete() {
  local name
  for name in "${names[@]}"; do [ -f "$files/$name" ] || return 1; done
}
digest() { sha256sum "$1" | cut -d ' ' -f 1; }

if complete; then
  say "CIFAR-10 is in $files already"
  exit
fi
mkdir -p "$folder" || die "download: cannot make the folder $folder"
if [ ! -f "$archive" ]; then
  if [ ! -f "$archive.part" ] || [ "$(digest "$archive.part")" != "$sha256" ]; then
    say "fetching $url"
    if command -v curl >/dev/null; then
      get=(curl --fail --location --retry 3 --connect-timeout 20 --continue-at - --output "$archive.part" "$url")
    elif command -v wget >/dev/null; then
      get=(wget --tries=3 --timeout=20 --continue --output-document="$archive.part" "$url")
    else
      die "download: neither curl nor wget is here; install one of them"
    fi
    "${get[@]}" || die "download: could not fetch $url (see above; is this machine online?).
Run this again to go on where it stopped (remove $archive.part to start over), or fetch the file
elsewhere and put it at $archive.
Without it, scripts/train.sh trains on a small generated set."
  fi
  mv "$archive.part" "$archive"
fi
found=$(digest "$archive")
if [ "$found" != "$sha256" ]; then
  rm -f "$archive"
  die "download: the archive's SHA-256 is wrong, so it was removed; run this again.
  expected $sha256
  found    $found"
fi
tar -xzf "$archive" -C "$folder" || die "download: $archive could not be unpacked into $folder (is the disk full?)"
complete || die "download: $archive holds other files than expected; looked in $files for ${names[*]}"
say "CIFAR-10 is in $files"
