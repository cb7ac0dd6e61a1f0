#!/usr/bin/env python3
"""Plots and Markdown tables of bench/run_benchmark.py's results.

    python3 bench/make_plot.py [--GPU A B ...] [--method FP32 FP16 amp ...] [--batch 128 256 ...] [--plot-std]
        [--results DIR] [--out DIR] [--frameworks halftone pytorch ...] [--no-plots]

A GPU is a file DIR/<GPU>.json or one of the article's ("Tesla V100", "GTX 1080 Ti", "GTX TITAN X": bench/published.json).
Writes OUT/time.png, step.png, images_per_s.png, memory.png, memory_tensors.png and accuracy.png (time_std.png ... with
--plot-std): one line a GPU, framework and method. Tables go to stdout, last the article's times over ours.
"""
import argparse
import pathlib
import sys

import benchmark_results
import benchmark_tables

FIGURES = {"time": "train_s", "step": "step_ms", "images_per_s": "images_per_s", "memory": "driver_mib",
           "memory_tensors": "peak_mib", "accuracy": "test_accuracy"}
COLOURS = {"fp32": "tab:blue", "tf32": "tab:cyan", "fp16": "tab:green", "amp": "tab:red", "bf16": "tab:purple"}
LINES = ["-", "--", ":", "-."]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--GPU", "--gpu", nargs="+", help="by default every file in --results")
    parser.add_argument("--method", "--methods", nargs="+", help="by default all; upper or lower case")
    parser.add_argument("--batch", "--batches", nargs="+", type=int, help="by default all")
    parser.add_argument("--frameworks", "--framework", nargs="+", help="by default all")
    parser.add_argument("--plot-std", "--plot_std", action="store_true", help="error bars of one standard deviation")
    parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("results"))
    parser.add_argument("--out", type=pathlib.Path, help="folder of the plots; by default that of the results")
    parser.add_argument("--no-plots", action="store_true", help="tables only, without matplotlib")
    return parser.parse_args()


def select(args):
    """{GPU: cells} of what was asked for; ends the program where a name is unknown or nothing is left."""
    published = benchmark_results.published()
    names = args.GPU or sorted(path.stem for path in args.results.glob("*.json"))
    gpus = {}
    for name in names:
        path = args.results / f"{name}.json"
        if path.exists():
            gpus[name] = benchmark_results.summarize(benchmark_results.load(path))
        elif name in published:
            gpus[name] = published[name]
        else:
            sys.exit(f"GPU '{name}': no file {path}, and the article has only {', '.join(published)}")
    methods = [m.lower() for m in args.method or []]
    if unknown := set(methods) - set(benchmark_tables.METHODS):
        sys.exit(f"--method {' '.join(sorted(unknown))}: unknown; there are {', '.join(benchmark_tables.METHODS)}")
    for name, cells in gpus.items():
        gpus[name] = {key: cell for key, cell in cells.items()
                      if (not args.frameworks or key[0] in (*args.frameworks, "article"))
                      and (not methods or key[1] in methods) and (not args.batch or key[2] in args.batch)}
    if not any(gpus.values()):
        sys.exit(f"nothing to show: no results in {args.results} fit")
    return gpus, published


def plot(gpus, figure, metric, with_std, folder):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    title, unit, _ = benchmark_results.METRICS[metric]
    frameworks = list(dict.fromkeys(key[0] for cells in gpus.values() for key in cells))
    drawn, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for marker, (gpu, cells) in zip(MARKERS * len(gpus), gpus.items()):
        for framework, method in benchmark_tables.series_of(cells):
            points = [(b, cells[framework, method, b][metric]) for b in benchmark_tables.batches_of({gpu: cells})
                      if metric in cells.get((framework, method, b), {})]
            if points:
                axes.errorbar([b for b, _ in points], [s.mean for _, s in points],
                              yerr=[s.std for _, s in points] if with_std else None, capsize=4 if with_std else 0,
                              color=COLOURS[method], linestyle=LINES[frameworks.index(framework) % len(LINES)],
                              marker=marker, markersize=5, label=f"{gpu} {framework} {method}")
    if axes.lines:
        ticks = benchmark_tables.batches_of(gpus)
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(b) for b in ticks])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("batch size")
        axes.set_ylabel(unit)
        axes.set_title(f"VGG16 on CIFAR-10: {title[0].lower()}{title[1:]}")
        axes.grid(alpha=0.4)
        axes.legend(fontsize="small")
        path = folder / f"{figure}{'_std' if with_std else ''}.png"
        drawn.savefig(path, dpi=120)
        yield path
    pyplot.close(drawn)


def main():
    args = arguments()
    gpus, published = select(args)
    print(benchmark_tables.report(gpus, published))
    if args.no_plots:
        return
    folder = args.out or args.results
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for figure, metric in FIGURES.items():
            for path in plot(gpus, figure, metric, args.plot_std, folder):
                print(f"wrote {path}")
    except ModuleNotFoundError as e:
        sys.exit(f"plots need {e.name} (Debian: apt-get install python3-matplotlib, for /usr/bin/python3); --no-plots "
                 "leaves them out")


if __name__ == "__main__":
    main()
