#!/usr/bin/env bash
# Usage: scripts/gpu_check.sh [options]
#
# All checks of the CUDA back end on a machine with a GPU, in stages, each with its own time limit and log:
#   build      the cuda preset
#   tests      every test of that build
#   sanitizer  compute-sanitizer over the CUDA tests
#   benchmark  a short training run and the GPU benchmarks
#
#   --stages LIST     only these, for example build,tests
#   --tools LIST      compute-sanitizer's tools (memcheck,racecheck,initcheck)
#   --limit STAGE=S   time limit of a stage in seconds; 0 for none (build=1500 tests=900 sanitizer=1200 benchmark=300)
#   --logs FOLDER     where the logs go (build-cuda/logs)
#   --require-gpu     a stage that cannot run for want of a GPU is a failure
#   --help            this text
#
# Needs no network. Headers that the machine lacks may be carried in folders named by HALFTONE_EXTRA_INCLUDE or CPATH.
# Without a GPU, build and tests still run (CUDA tests skip themselves), and the other stages say SKIPPED.
source "$(dirname "$0")/common.sh"

declare -A limit=([build]=1500 [tests]=900 [sanitizer]=1200 [benchmark]=300)
stages=build,tests,sanitizer,benchmark
tools=memcheck,racecheck,initcheck
build_dir=build-cuda
logs=$build_dir/logs
require_gpu=
while [ $# -gt 0 ]; do
  case $1 in
    --stages | --tools | --limit | --logs)
      [ $# -ge 2 ] || die "gpu_check: $1 needs a value; see scripts/gpu_check.sh --help"
      ;;&
    --stages) stages=$2 && shift ;;
    --tools) tools=$2 && shift ;;
    --limit)
      [[ $2 =~ ^(build|tests|sanitizer|benchmark)=[0-9]+$ ]] || die "gpu_check: --limit '$2' is not STAGE=SECONDS"
      limit[${2%=*}]=${2#*=} && shift
      ;;
    --logs) logs=$2 && shift ;;
    --require-gpu) require_gpu=yes ;;
    -h | --help) usage "$PWD/scripts/gpu_check.sh" && exit ;;
    *) die "gpu_check: unknown option '$1'; see scripts/gpu_check.sh --help" ;;
  esac
  shift
done
for stage in ${stages//,/ }; do
  [ -n "${limit[$stage]:-}" ] || die "gpu_check: no stage '$stage'; there are build, tests, sanitizer and benchmark"
done
mkdir -p "$logs"

# A stage's body runs in a bash of its own, so that its limit covers all of it. It exits 3 with a reason when it cannot run.
skip() {
  echo "SKIPPED: $*"
  exit 3
}
has_gpu() { nvidia-smi --list-gpus 2>/dev/null | grep -q GPU; }
need_gpu() { has_gpu || skip 'NO GPU ON THIS MACHINE (nvidia-smi lists none)'; }

stage_build() {
  command -v "${CUDACXX:-nvcc}" >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || skip 'NO CUDA TOOLKIT (nvcc) ON THIS MACHINE'
  scripts/setup.sh --check || echo 'going on; the configuration below decides'
  cmake --preset cuda
  build
}
stage_tests() {
  [ -f "$build_dir/CTestTestfile.cmake" ] || skip "$build_dir is not built"
  ctest --test-dir "$build_dir" --output-on-failure
  has_gpu || skip 'all passed, but NO GPU ON THIS MACHINE: what needs one did not run'
}
stage_sanitizer() {
  need_gpu
  command -v compute-sanitizer >/dev/null || skip 'compute-sanitizer is not here'
  local tool test tests=()
  for test in "$build_dir"/test_cuda*; do [ ! -x "$test" ] || tests+=("$test"); done
  [ ${#tests[@]} -gt 0 ] || skip "no CUDA tests in $build_dir"
  for tool in ${tools//,/ }; do
    for test in "${tests[@]}"; do
      say "$tool $test"
      compute-sanitizer --tool "$tool" --error-exitcode 9 "$test"
    done
  done
}
stage_benchmark() {
  need_gpu
  local program found=
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,memory.total --format=csv,noheader
  for program in "$build_dir"/bin/bench_*_gpu; do
    [ -x "$program" ] || continue
    found=yes
    say "$program"
    "$program" --batches 128 --windows 3 --steps 10
  done
  if [ -x "$build_dir/bin/train_vgg16" ]; then
    found=yes
    say 'train_vgg16, 50 iterations'
    "$build_dir/bin/train_vgg16" --device cuda --iterations 50
  fi
  [ -n "$found" ] || skip "no benchmarks in $build_dir"
}
export -f say die build skip has_gpu need_gpu stage_build stage_tests stage_sanitizer stage_benchmark
export build_dir tools

summary='' failed=
for stage in ${stages//,/ }; do
  say "$stage (limit ${limit[$stage]} s, log $logs/$stage.log)"
  begin=$SECONDS
  status=0
  timeout --kill-after=10 "${limit[$stage]}" stdbuf -oL -eL bash -c "set -euo pipefail; stage_$stage" 2>&1 </dev/null |
    stdbuf -oL tee "$logs/$stage.log" || status=$?
  case $status in
    0) word=ok ;;
    3)
      word="SKIPPED ($(sed -n 's/^SKIPPED: //p' "$logs/$stage.log" | tail -n 1))"
      [ -z "$require_gpu" ] || failed=yes
      ;;
    124 | 137) word="TIMED OUT after ${limit[$stage]} s" && failed=yes ;;
    *) word="FAILED (status $status)" && failed=yes ;;
  esac
  summary+=$(printf '%-10s %5d s  %s' "$stage" $((SECONDS - begin)) "$word")$'\n'
done
printf '\n== summary\n%s' "$summary"
[ -z "$failed" ] || die 'gpu_check: not all stages passed'
