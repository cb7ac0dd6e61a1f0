#!/usr/bin/env python3
"""A whole training, ours beside PyTorch's twin of it (bench/pytorch_recipe.py): accuracy and time of each seed.

    python3 bench/recipe_accuracy.py --data DIR --recipe fast [--seeds 5] [--frameworks halftone pytorch-graph ...]

A process a seed, frameworks taking turns. On a GPU a first short run of ours finds the plans, as PyTorch's steps before its
clock do. Prints a Markdown table: accuracies after the last epoch, of the weights, of averaged weights, and those with mirrored
test images; seconds of training, of the warm-up beside it, of the whole process.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
FRAMEWORKS = ["halftone", "pytorch-graph", "pytorch-compile", "pytorch-eager"]
# Column: the key of a result and what turns its value into the text's unit.
COLUMNS = {"test %": ("test_accuracy", 100), "averaged %": ("test_ema_accuracy", 100),
           "averaged, mirrored %": ("test_ema_tta_accuracy", 100), "training s": ("train_s", 1),
           "warm-up s": ("warm_up_s", 1), "process s": ("process_s", 1)}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of CIFAR-10's binary files")
    parser.add_argument("--recipe", choices=["fast", "best"], default="fast")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, default=FRAMEWORKS[:3])
    parser.add_argument("--program", type=pathlib.Path, default=pathlib.Path("build/bin/train_vgg16"))
    parser.add_argument("--python", default=sys.executable, help="the Python that has PyTorch")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for a process")
    parser.add_argument("--halftone-flags", default="--amp O1", help="in one string (default %(default)s)")
    parser.add_argument("--pytorch-flags", default="", help="in one string")
    return parser.parse_args()


def run_halftone(args, seed, more=()):
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log.jsonl"
        command = [args.program, "--data", args.data, "--recipe", args.recipe, "--seed", seed, "--eval", 0, "--tta", "--quiet",
                   "--log", log, *args.halftone_flags.split(), *more]
        call(command, args.timeout)
        return json.loads(log.read_text(encoding="utf-8").splitlines()[-1])


def run_pytorch(args, way, seed):
    command = [args.python, HERE / "pytorch_recipe.py", "--data", args.data, "--recipe", args.recipe, "--way", way, "--seed", seed,
               *args.pytorch_flags.split()]
    return json.loads(call(command, args.timeout).splitlines()[-1])


def call(command, timeout):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def spread(values, digits=2):
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{deviation}"


def values_of(results, column):
    key, factor = COLUMNS[column]
    return [factor * r[key] for r in results if r.get(key) is not None]


def report(results):
    """Of {framework: its seeds' results}: a row a seed, means with standard deviations, and ours beside the others."""
    lines = [f"| framework | seed | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 2) + "|"]
    for framework, runs in results.items():
        rows = [(str(seed), [run]) for seed, run in enumerate(runs)] + [("mean", runs)]
        for name, some in rows:
            cells = [spread(values) if (values := values_of(some, column)) else "-" for column in COLUMNS]
            lines.append(f"| {framework} | {name} | {' | '.join(cells)} |")
    for other in results:
        if other == "halftone" or "halftone" not in results:
            continue
        means = {column: [statistics.fmean(v) if (v := values_of(results[f], column)) else float("nan")
                          for f in ("halftone", other)] for column in COLUMNS}
        points = ", ".join(f"{column.removesuffix(' %')} {ours - theirs:+.2f}"
                           for column, (ours, theirs) in means.items() if column.endswith("%"))
        ours, theirs = means["training s"]
        lines.append(f"\nhalftone beside {other}: points of accuracy: {points}; training time {ours / theirs:.3f} of it.")
    return "\n".join(lines)


def main():
    args = arguments()
    if not args.program.exists() and "halftone" in args.frameworks:
        sys.exit(f"{args.program} is missing; build it, or name it: --program")
    if "halftone" in args.frameworks:
        found = run_halftone(args, 0, ["--iterations", 8])
        print(f"plans: the first steps took {found['warm_up_s']:.2f} s", flush=True)
    results = {framework: [] for framework in args.frameworks}
    for seed in range(args.seeds):
        for framework in args.frameworks:
            name, _, way = framework.partition("-")
            begin = time.monotonic()
            result = run_halftone(args, seed) if name == "halftone" else run_pytorch(args, way, seed)
            result["process_s"] = time.monotonic() - begin
            results[framework].append(result)
            averaged = f" (averaged {100 * result['test_ema_accuracy']:.2f} %)" if result.get("test_ema_accuracy") else ""
            print(f"{framework} seed {seed}: {100 * result['test_accuracy']:.2f} %{averaged}, {result['train_s']:.2f} s", flush=True)
    print("\n" + report(results))


if __name__ == "__main__":
    main()
