#!/usr/bin/env bash
# Usage: scripts/gpu_check.sh [options] [stage ...]
#
# The checks of the CUDA back end on a machine with a GPU, all stages or those named, each with its own time limit and log:
#   build      the cuda preset, without the examples
#   test       every test of that build but the slow ones
#   sanitize   the quick CUDA tests under compute-sanitizer: short for the stages memcheck, racecheck and initcheck
#   benchmark  VGG16's training step, the start with a warm plan cache, a short training run
#
#   --limit STAGE=S   time limit of a stage in seconds (build=240 on 16 cores, more on fewer; benchmark=60, all
#                     others 150)
#   --logs FOLDER     where the logs go ($OUT where that is set, else build-cuda/logs)
#   --require-gpu     a stage that cannot run for want of a GPU is a failure
#   --help            this text
#
# Needs no network. Headers that the machine lacks may be carried in folders named by HALFTONE_EXTRA_INCLUDE or CPATH.
# Without a GPU, build and test still run (CUDA tests skip themselves), and the other stages say SKIPPED.
source "$(dirname "$0")/common.sh"

cores=$(nproc)
declare -A limit=([build]=$((cores < 16 ? 240 * 16 / cores : 240)) [test]=150 [memcheck]=150 [racecheck]=150
  [initcheck]=150 [benchmark]=60)
build_dir=build-cuda
logs=${OUT:-$build_dir/logs}
require_gpu=
stages=()
while [ $# -gt 0 ]; do
  case $1 in
    --limit | --logs)
      [ $# -ge 2 ] || die "gpu_check: $1 needs a value; see scripts/gpu_check.sh --help"
      ;;&
    --limit)
      [[ $2 =~ ^([a-z]+)=([0-9]+)$ && -n ${limit[${BASH_REMATCH[1]}]:-} ]] || die "gpu_check: --limit '$2' is not STAGE=SECONDS"
      limit[${BASH_REMATCH[1]}]=${BASH_REMATCH[2]} && shift
      ;;
    --logs) logs=$2 && shift ;;
    --require-gpu) require_gpu=yes ;;
    -h | --help) usage "$PWD/scripts/gpu_check.sh" && exit ;;
    -*) die "gpu_check: unknown option '$1'; see scripts/gpu_check.sh --help" ;;
    sanitize) stages+=(memcheck racecheck initcheck) ;;
    *)
      [ -n "${limit[$1]:-}" ] ||
        die "gpu_check: no stage '$1'; there are build, test, sanitize (memcheck, racecheck, initcheck) and benchmark"
      stages+=("$1")
      ;;
  esac
  shift
done
[ ${#stages[@]} -gt 0 ] || stages=(build test memcheck racecheck initcheck benchmark)
mkdir -p "$logs"

# A stage's body runs in a bash of its own, so that its limit covers all of it. Its last line "RESULT: ..." goes into the
# summary. It exits 3 with a reason when it cannot run.
skip() {
  echo "SKIPPED: $*"
  exit 3
}
has_gpu() { nvidia-smi --list-gpus 2>/dev/null | grep -q GPU; }
need_gpu() { has_gpu || skip 'NO GPU ON THIS MACHINE (nvidia-smi lists none)'; }

stage_build() {
  command -v "${CUDACXX:-nvcc}" >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] || skip 'NO CUDA TOOLKIT (nvcc) ON THIS MACHINE'
  scripts/setup.sh --check || echo 'going on; the configuration below decides'
  cmake --preset cuda -DHALFTONE_BUILD_EXAMPLES=OFF
  build
}
stage_test() {
  [ -f "$build_dir/CTestTestfile.cmake" ] || skip "$build_dir is not built"
  local status=0
  HALFTONE_TUNE=off ctest --test-dir "$build_dir" --output-on-failure --parallel "$(nproc)" -LE slow | tee "$stage_log.ctest" || status=$?
  echo "RESULT: $(grep 'tests passed' "$stage_log.ctest" || echo 'no summary')"
  [ "$status" -eq 0 ] || return "$status"
  has_gpu || skip 'all passed, but NO GPU ON THIS MACHINE: what needs one did not run'
}
# sanitize_one TOOL RUN: a program with its test cases, into a log of its own; the last line told says how it went.
sanitize_one() {
  local log="$stage_log.${2//[^a-z0-9_]/-}" status=0
  HALFTONE_TUNE=off compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 20 \
    "$build_dir/${2% *}" --test-case="${2#* }" >"$log" 2>&1 || status=$?
  local races=0 known=0
  races=$(grep -c -E 'Race reported between|and (Read|Write) access' "$log" || true)
  known=$(grep -c -E '(Race reported between|and (Read|Write) access).*sm90_xmma_dgrad_implicit_gemm_indexed' "$log" || true)
  local word="status $status"
  if [ "$status" -eq 0 ]; then
    word=ok
  elif [ "$races" -gt 0 ] && [ "$races" -eq "$known" ] && grep -q 'Status: SUCCESS' "$log"; then
    word='ok but for a kernel of cuDNN (docs/cuda.md)'
  fi
  [[ $word == ok* ]] || tail -n 60 "$log"
  echo "$1 $2: $word; $(grep -o '[A-Z]* SUMMARY: .*' "$log" | tail -n 1)"
}
# sanitize TOOL: programs side by side, as the tools keep a core busy each and the GPU hardly.
sanitize() {
  need_gpu
  command -v compute-sanitizer >/dev/null || skip 'compute-sanitizer is not here'
  [ -x "$build_dir/test_cuda_ops" ] || skip "no CUDA tests in $build_dir"
  local runs=('test_cuda_ops *f32*' 'test_cuda_training *loader*,*clipping*,*conversions*' 'test_cuda_few_channels *'
    'test_cuda_batch_norm *' 'test_step_log *' 'test_early_check *' 'test_whole_step *' 'test_cuda_products *quick*')
  rm -f "$stage_log".test_*
  printf '%s\n' "${runs[@]}" |
    xargs -d '\n' -P "$((cores > 4 ? cores * 3 / 4 : 1))" -I{} bash -c 'sanitize_one "$0" "$1"' "$1" {} | tee "$stage_log.told" || true
  local refusal
  refusal=$(grep -h -m 1 -E 'Device not supported|Internal Sanitizer Error|LibraryNotLoaded|error 999' "$stage_log".test_* | head -n 1 || true)
  if [ -n "$refusal" ] && ! grep -q 'SUMMARY: 0' "$stage_log".test_*; then
    skip "THIS MACHINE'S RUNTIME REFUSES compute-sanitizer: ${refusal#=========}"
  fi
  local good
  good=$(grep -c -E "^$1 test_.*: ok( but|;)" "$stage_log.told" || true)
  echo "RESULT: $1: $((${#runs[@]} - good)) of ${#runs[@]} programs with errors"
  [ "$good" -eq "${#runs[@]}" ]
}
stage_memcheck() { sanitize memcheck; }
stage_racecheck() { sanitize racecheck; }
stage_initcheck() { sanitize initcheck; }
stage_benchmark() {
  need_gpu
  [ -x "$build_dir/bin/bench_vgg16_gpu" ] || skip "no benchmarks in $build_dir"
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,memory.total --format=csv,noheader
  "$build_dir/bin/bench_vgg16_gpu" --batches 128 --windows 3 --steps 10
  say 'again, with a warm plan cache'
  "$build_dir/bin/bench_vgg16_gpu" --modes tf32 --batches 128 --windows 1 --steps 1 | tee "$stage_log.warm"
  say 'train_vgg16, 50 iterations'
  "$build_dir/bin/train_vgg16" --device cuda --iterations 50
  echo "RESULT: warm: $(grep -o '"process_to_first_step_s": [0-9.]*' "$stage_log.warm")"
}
export -f say die build skip has_gpu need_gpu sanitize sanitize_one
export -f stage_build stage_test stage_memcheck stage_racecheck stage_initcheck stage_benchmark
export build_dir stage_log cores

summary='' failed=
for stage in "${stages[@]}"; do
  stage_log=$logs/$stage.log
  say "$stage (limit ${limit[$stage]} s, log $stage_log)"
  begin=$SECONDS
  status=0
  timeout --kill-after=10 "${limit[$stage]}" stdbuf -oL -eL bash -c "set -euo pipefail; stage_$stage" 2>&1 </dev/null |
    stdbuf -oL tee "$stage_log" || status=$?
  result=$(sed -n 's/^RESULT: //p' "$stage_log" | tail -n 1)
  case $status in
    0) word=ok ;;
    3)
      word="SKIPPED ($(sed -n 's/^SKIPPED: //p' "$stage_log" | tail -n 1))"
      [ -z "$require_gpu" ] || failed=yes
      ;;
    124 | 137) word="TIMED OUT after ${limit[$stage]} s" && failed=yes ;;
    *) word="FAILED (status $status)" && failed=yes ;;
  esac
  summary+=$(printf '%-10s %5d s  %s%s' "$stage" $((SECONDS - begin)) "$word" "${result:+; $result}")$'\n'
done
printf '\n== summary\n%s' "$summary"
[ -z "$failed" ] || die 'gpu_check: not all stages passed'
