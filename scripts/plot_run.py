#!/usr/bin/env python3
"""Curves of a training run from its log: `scripts/plot_run.py LOG.jsonl [--out FILE]`.

LOG is what `train_vgg16 --log` writes. Draws loss, accuracy, learning rate and, under mixed precision, the loss scale over the steps;
FILE's ending decides the format (default: LOG with .png). A run that was killed leaves a log that can be drawn, too. Needs matplotlib
(Debian: apt-get install python3-matplotlib).
"""
import argparse
import json
import pathlib
import sys


def read(path):
    """The step and epoch records; a last line that was cut off is left out."""
    records = []
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as e:
            if number < len(lines):
                sys.exit(f"plot_run: {path}:{number} is not JSON: {e}")
    steps = [r for r in records if r.get("type") == "step"]
    epochs = [r for r in records if r.get("type") == "epoch"]
    if not steps and not epochs:
        sys.exit(f"plot_run: {path} has no step and no epoch records; is it a log of train_vgg16 --log?")
    return steps, epochs


def series(records, field):
    """Steps and values, without those that are missing or null (a loss that was not finite)."""
    points = [(r["step"], r[field]) for r in records if r.get(field) is not None]
    return [p[0] for p in points], [p[1] for p in points]


def evaluated(epochs, ending):
    """Names of what was evaluated: test, validation, test_ema ..."""
    names = {key for r in epochs for key, value in r.items() if key.endswith(ending) and value is not None}
    return sorted(key[: -len(ending)] for key in names if key != "train_accuracy")


def smooth(values):
    """A moving average over a fiftieth of the run."""
    n = max(1, len(values) // 50)
    return [sum(values[max(0, i - n + 1): i + 1]) / (i + 1 - max(0, i - n + 1)) for i in range(len(values))]


def draw(steps, epochs, out, title):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    scaled = any("loss_scale" in r for r in steps)
    names = ["loss", "accuracy", "learning rate"] + ["loss scale"] * scaled
    figure, axes = pyplot.subplots(len(names), 1, sharex=True, figsize=(9, 2.6 * len(names)), constrained_layout=True)
    for axis, name in zip(axes, names):
        axis.set_ylabel(name)
        axis.grid(alpha=0.3)
    for axis, field in zip(axes, ("loss", "accuracy")):
        x, y = series(steps, field)
        axis.plot(x, y, color="tab:blue", alpha=0.25, linewidth=0.6)
        axis.plot(x, smooth(y), color="tab:blue", label="training, moving average")
        for name in evaluated(epochs, "_" + field):
            axis.plot(*series(epochs, f"{name}_{field}"), marker="o", markersize=3, label=name)
        axis.legend(fontsize="small")
    axes[2].plot(*series(steps, "lr"), color="tab:green")
    if scaled:
        axes[3].step(*series(steps, "loss_scale"), where="post", color="tab:red")
        axes[3].set_yscale("log", base=2)
    axes[-1].set_xlabel("step")
    axes[0].set_title(title)
    figure.savefig(out, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, help="by default LOG with .png")
    args = parser.parse_args()
    try:
        steps, epochs = read(args.log)
        out = args.out or args.log.with_suffix(".png")
        draw(steps, epochs, out, args.log.name)
    except ImportError:
        sys.exit("plot_run: needs matplotlib (Debian: apt-get install python3-matplotlib)")
    except (OSError, ValueError) as e:
        sys.exit(f"plot_run: {e}")
    print(out)


if __name__ == "__main__":
    main()
