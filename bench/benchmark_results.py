"""The results of bench/run_benchmark.py: the file, and means over its repeats. Used by the driver, the tables and the plots.

A file is {"gpu_name", "settings", "hardware", "gemm_tflops", "repeats": [...]}; a repeat is what one process measured, with
"framework", "method", "batch", "number" and "status": "ok" or, with "error", "failed". In memory a GPU's results are
{(framework, method, batch): {metric: Stat}}.
"""
import dataclasses
import json
import os
import pathlib
import statistics

# Metric: title, unit, digits after the point. train_s is the article's time, driver_mib its memory.
METRICS = {
    "train_s": ("Time of the whole training", "s", 2),
    "steady_s": ("Time of the training without its first 5 iterations", "s", 2),
    "step_ms": ("Time of a step alone", "ms", 2),
    "images_per_s": ("Throughput of the step alone", "images/s", 0),
    "tflops": ("Arithmetic of the step alone", "TFLOP/s", 1),
    "gemm_share": ("Share of the rate of a large matrix product", "%", 1),
    "peak_mib": ("Memory in tensors, peak", "MiB", 0),
    "driver_mib": ("Memory in use on the GPU", "MiB", 0),
    "train_loss": ("Training loss, mean of all iterations", "", 3),
    "test_loss": ("Test loss", "", 3),
    "test_accuracy": ("Test accuracy", "%", 2),
}
PUBLISHED = pathlib.Path(__file__).with_name("published.json")


@dataclasses.dataclass
class Stat:
    mean: float
    std: float  # of the population, as the article's
    values: list = dataclasses.field(default_factory=list)  # in the order of repeats; none for published figures

    @staticmethod
    def of(values):
        return Stat(statistics.fmean(values), statistics.pstdev(values), list(values))


def flop_per_image(width=1.0):
    """Of VGG16's products, forward and backward (2 a multiplication and addition; the first layer needs no dx)."""
    def scaled(channels):
        return max(8, 8 * int(channels * width / 8 + 0.5))

    products, first, channels, side = 0, 0, 3, 32
    for out, convs in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convs):
            products += 9 * channels * scaled(out) * side * side
            first = first or products
            channels = scaled(out)
        side //= 2
    for out in (scaled(4096), scaled(4096), 10):
        products += channels * out
        channels = out
    return 2 * (3 * products - first)


def derive(result, iterations, width, gemm_tflops):
    """Adds what follows from a repeat's times."""
    seconds = result["step_ms"] / 1000
    result["images_per_s"] = result["batch"] / seconds
    result["tflops"] = result["images_per_s"] * flop_per_image(width) / 1e12
    rate = gemm_tflops.get(result["method"])
    result["gemm_share"] = 100 * result["tflops"] / rate if rate else None
    warm_up = result.get("warm_up_s")
    result["steady_s"] = result["train_s"] - warm_up if warm_up is not None and iterations > 5 else None


def save(path, document):
    """The file appears whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)


def load(path):
    return json.loads(path.read_text(encoding="utf-8"))


def summarize(document):
    cells = {}
    for r in document["repeats"]:
        cell = cells.setdefault((r["framework"], r["method"], r["batch"]), {m: [] for m in METRICS})
        for metric, values in cell.items():
            if r["status"] == "ok" and r.get(metric) is not None:
                values.append(r[metric])
    return {key: {m: Stat.of(values) for m, values in cell.items() if values} for key, cell in cells.items()}


def published():
    """Of each GPU of the article, as summarize() gives it; the framework is called article."""
    document = load(PUBLISHED)
    return {gpu: {("article", method, batch): {metric: Stat(*pairs[i]) for metric, pairs in figures.items()}
                  for method, figures in methods.items() for i, batch in enumerate(document["batches"])}
            for gpu, methods in document["gpus"].items()}
