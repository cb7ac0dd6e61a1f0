#!/usr/bin/env python3
"""The CPU beside libtorch, in one run: single operations and VGG16 training, as Markdown tables.

    python3 bench/compare_cpu.py [ops] [training] [--quick] [--json FILE] ...

Alternates the two programs round by round, each round a process of its own (so that the peak memory is that program's
alone), and prints medians with the lowest and highest round. A ratio above 1 means that Halftone is faster. The
operations take about three minutes, as does training. Needs bench_ops_cpu and bench_vgg16_cpu and, for the ratios, their
peers (built where libtorch is found).
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys


def run_rounds(args, what, batch, threads, last):
    """The results of both programs, a list of rounds each; one list where libtorch's program is missing."""
    programs = [args.build / "bin" / f"bench_{what}_{side}" for side in ("cpu", "libtorch")]
    if not programs[0].exists():
        sys.exit(f"{programs[0]} is missing; build with -DHALFTONE_BUILD_BENCH=ON")
    results = [[] for p in programs if p.exists()]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    for _ in range(args.rounds):
        for program, rounds in zip(programs, results):
            command = [str(program), str(batch), str(threads), str(last)]
            out = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
            rounds.append(json.loads(out.splitlines()[-1]))
    return results


def spread(values, digits):
    low, middle, high = (f"{v:.{digits}f}" for v in (min(values), statistics.median(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({low}-{high})"


def ratio(above, below):
    return f"{statistics.median(above) / statistics.median(below):.2f}"


def compare_ops(args):
    for threads in args.threads:
        results = run_rounds(args, "ops", args.batch, threads, args.case_ms)
        print(f"\nOperations, batch {args.batch}, threads {threads}: median of {args.rounds} rounds (lowest-highest)\n")
        print("| case | halftone ms | libtorch ms | libtorch / halftone |\n|---|---|---|---|")
        for case in results[0][0]["ms"]:
            times = [[r["ms"][case] for r in rounds] for rounds in results]
            peer = (spread(times[1], 3), ratio(times[1], times[0])) if len(times) > 1 else ("-", "-")
            print(f"| {case} | {spread(times[0], 3)} | {peer[0]} | {peer[1]} |", flush=True)
        yield from results


def compare_training(args):
    print(f"\nVGG16 training, median of {args.rounds} rounds (lowest-highest)\n")
    print("| batch | threads | program | images/s | halftone / libtorch | peak MiB |\n|---|---|---|---|---|---|")
    for batch in args.batches:
        for threads in args.threads:
            results = run_rounds(args, "vgg16", batch, threads, args.steps)
            speeds = [[r["images_per_s"] for r in rounds] for rounds in results]
            for rounds, speed in zip(results, speeds):
                against = ratio(speeds[0], speeds[1]) if len(speeds) > 1 and speed is speeds[0] else "-"
                peak = max(r["peak_mib"] for r in rounds)
                print(f"| {batch} | {threads} | {rounds[0]['name']} | {spread(speed, 1)} | {against} | {peak:.0f} |",
                      flush=True)
            yield from results


def main():
    tables = {"ops": compare_ops, "training": compare_training}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", help="ops, training; both when none is named")
    parser.add_argument("--build", default="build", type=pathlib.Path)
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32, help="of the operations")
    parser.add_argument("--case-ms", type=int, default=50, help="an operation is repeated for about so long a round")
    parser.add_argument("--batches", nargs="+", type=int, default=[32, 128], help="of training")
    parser.add_argument("--steps", type=int, default=3, help="of training, a round")
    parser.add_argument("--quick", action="store_true", help="the smallest run of all: does it work?")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the results of every round, too")
    args = parser.parse_args()
    if unknown := set(args.tables) - set(tables):
        parser.error(f"no table {unknown.pop()}; there are {' and '.join(tables)}")
    if args.quick:
        args.threads, args.rounds, args.batch, args.case_ms, args.batches, args.steps = [1], 1, 2, 1, [2], 1

    results = [rounds for name in args.tables or tables for rounds in tables[name](args)]
    if args.json:
        args.json.write_text(json.dumps(sum(results, []), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
