#!/usr/bin/env bash
# Usage: scripts/train.sh [--download] [options of train_vgg16]
#
# Sets up this machine, builds Halftone and trains VGG16. Without data it trains on a small generated 10-class set.
#
#   --download    fetch CIFAR-10 to ./data-cifar10 first (162 MiB, resumable, SHA-256 checked) and train on it
#   --data DIR    train on CIFAR-10 binary files that are in DIR
#   --help        this text, and train_vgg16's own options once it is built
#
# All other options go to train_vgg16 as they are. The build goes to ./build, or to the folder named by HALFTONE_BUILD.
source "$(dirname "$0")/common.sh"

program=$build_dir/bin/train_vgg16
download=
options=()
for option in "$@"; do
  case $option in
    -h | --help)
      usage "$PWD/scripts/train.sh"
      if [ -x "$program" ]; then
        echo
        "$program" --help
      fi
      exit
      ;;
    --download) download=yes ;;
    *) options+=("$option") ;;
  esac
done

scripts/setup.sh
if [ -n "$download" ]; then
  scripts/download_cifar10.sh data-cifar10
  options=(--data data-cifar10/cifar-10-batches-bin "${options[@]}")
fi
say 'building train_vgg16'
configure
build train_vgg16
say "$program ${options[*]:-}"
# Threads that wait asleep: spinning ones cost a factor of ten as soon as another program wants a core.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
exec "$program" "${options[@]}"
