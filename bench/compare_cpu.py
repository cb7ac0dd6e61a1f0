#!/usr/bin/env python3
"""VGG16 training on the CPU beside libtorch, in one run: alternates the two programs and prints medians and ratios.

    python3 bench/compare_cpu.py [--build build] [--batches 32 128] [--threads 1 2] [--rounds 3] [--steps 3]

Each round is a process of its own, so that the peak memory is that program's alone. Needs bench_vgg16_cpu and, for the
ratios, bench_vgg16_libtorch (built where libtorch is found).
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build", type=pathlib.Path)
    parser.add_argument("--batches", nargs="+", type=int, default=[32, 128])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()

    programs = [args.build / "bin" / f"bench_vgg16_{name}" for name in ("cpu", "libtorch")]
    if not programs[0].exists():
        sys.exit(f"{programs[0]} is missing; build with -DHALFTONE_BUILD_BENCH=ON")
    if not programs[1].exists():
        print(f"{programs[1]} is missing (libtorch not found when configured): no ratios")
        programs.pop()

    print("| batch | threads | program | images/s (median) | all rounds | ratio | peak MiB |")
    print("|---|---|---|---|---|---|---|")
    for batch in args.batches:
        for threads in args.threads:
            runs = {p: [] for p in programs}
            for _ in range(args.rounds):
                for p in programs:
                    command = [str(p), str(batch), str(threads), str(args.steps)]
                    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
                    out = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
                    runs[p].append(json.loads(out.splitlines()[-1]))
            speed = {p: statistics.median(r["images_per_s"] for r in rows) for p, rows in runs.items()}
            for p, rows in runs.items():
                ratio = f"{speed[p] / speed[programs[1]]:.2f}" if len(programs) > 1 else "-"
                each = " ".join(f"{r['images_per_s']:.1f}" for r in rows)
                peak = max(r["peak_mib"] for r in rows)
                print(f"| {batch} | {threads} | {rows[0]['name']} | {speed[p]:.1f} | {each} | {ratio} | {peak:.0f} |",
                      flush=True)


if __name__ == "__main__":
    main()
