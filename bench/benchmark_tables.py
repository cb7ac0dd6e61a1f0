"""Markdown tables of {GPU: {(framework, method, batch): {metric: Stat}}}, as benchmark_results gives them."""
from benchmark_results import METRICS

METHODS = ["fp32", "tf32", "fp16", "amp", "bf16", "o2"]


def method_order(method):
    return METHODS.index(method) if method in METHODS else len(METHODS)


def series_of(cells):
    """(framework, method) in the order of frameworks found, methods as listed above."""
    frameworks = list(dict.fromkeys(key[0] for key in cells))
    found = {key[:2] for key in cells}
    return sorted(found, key=lambda s: (frameworks.index(s[0]), method_order(s[1])))


def batches_of(gpus):
    return sorted({key[2] for cells in gpus.values() for key in cells})


def table(head, batches, rows):
    """Rows are (names, a text a batch); rows without any text are left out."""
    lines = [f"| {' | '.join([*head, *map(str, batches)])} |", "|---" * (len(head) + len(batches)) + "|"]
    lines += [f"| {' | '.join([*names, *(text or '-' for text in texts)])} |" for names, texts in rows if any(texts)]
    return "\n".join(lines) if len(lines) > 2 else ""


def shown(stat, digits):
    return f"{stat.mean:.{digits}f} ± {stat.std:.{digits}f}" if stat else ""


def ratio(above, below):
    """Of two Stats, with the lowest and highest of paired repeats where there are several."""
    if not above or not below or not below.mean:
        return ""
    pairs = [a / b for a, b in zip(above.values, below.values)]
    spread = f" ({min(pairs):.2f}-{max(pairs):.2f})" if len(pairs) > 1 else ""
    return f"{above.mean / below.mean:.2f}{spread}"


def metric_table(gpus, metric, batches):
    title, unit, digits = METRICS[metric]
    rows = [((gpu, framework, method),
             [shown(cells.get((framework, method, b), {}).get(metric), digits)
              or ("failed" if metric == "train_s" and (framework, method, b) in cells else "") for b in batches])
            for gpu, cells in gpus.items() for framework, method in series_of(cells)]
    return title + (f", {unit}" if unit else ""), table(["GPU", "framework", "method"], batches, rows)


def speed_up_table(gpus, batches):
    """What a method gains over FP32 and TF32 of the same framework: step times, or the article's training times."""
    rows = []
    for gpu, cells in gpus.items():
        for framework, method in series_of(cells):
            for base in ("fp32", "tf32"):
                if method_order(method) > METHODS.index(base):
                    rows.append(((gpu, framework, f"{method} over {base}"),
                                 [ratio(*(time_of(cells, framework, m, b) for m in (base, method))) for b in batches]))
    return "Speed-up by method", table(["GPU", "framework", "method"], batches, rows)


def time_of(cells, framework, method, batch):
    cell = cells.get((framework, method, batch), {})
    return cell.get("step_ms") or cell.get("train_s")


def beside_table(gpus, batches):
    """Step times of the others over those of Halftone, same method and run: above 1 Halftone is faster."""
    rows = [((gpu, framework, method), [ratio(cells.get((framework, method, b), {}).get("step_ms"),
                                              cells.get(("halftone", method, b), {}).get("step_ms")) for b in batches])
            for gpu, cells in gpus.items() for framework, method in series_of(cells) if framework != "halftone"]
    return "Step time over Halftone's", table(["GPU", "framework", "method"], batches, rows)


def accuracy_table(gpus, batches):
    """Test accuracy less FP32's; within: the two ranges of mean ± std meet."""
    def difference(a, b):
        if not a or not b:
            return ""
        points = a.mean - b.mean
        return f"{points:+.2f} {'within' if abs(points) <= a.std + b.std else 'OUTSIDE'}"

    rows = [((gpu, framework, method),
             [difference(*(cells.get((framework, m, b), {}).get("test_accuracy") for m in (method, "fp32")))
              for b in batches])
            for gpu, cells in gpus.items() for framework, method in series_of(cells) if method != "fp32"]
    return "Test accuracy less FP32's, and whether within the spread", table(["GPU", "framework", "method"], batches, rows)


def article_table(gpus, published, batches):
    """The article's training time over Halftone's, same method; its FP32 beside TF32, too."""
    rows = [((gpu, their_gpu, method),
             [ratio(theirs.get(("article", "fp32" if method == "tf32" else method, b), {}).get("train_s"),
                    cells.get(("halftone", method, b), {}).get("train_s")) for b in batches])
            for gpu, cells in gpus.items() for their_gpu, theirs in published.items()
            for framework, method in series_of(cells) if framework == "halftone"]
    return "The article's training time over Halftone's", table(["GPU", "article's GPU", "method"], batches, rows)


def report(gpus, published=None):
    """All tables that have rows, each under a heading."""
    batches = batches_of(gpus)
    tables = [metric_table(gpus, metric, batches) for metric in METRICS]
    tables += [speed_up_table(gpus, batches), beside_table(gpus, batches), accuracy_table(gpus, batches)]
    if published:
        tables.append(article_table(gpus, published, batches))
    return "\n".join(f"### {title}\n\n{text}\n" for title, text in tables if text)
