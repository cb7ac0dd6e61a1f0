#!/usr/bin/env python3
"""The article's benchmark: VGG16 on CIFAR-10, methods x batch sizes x repeats, beside PyTorch if wanted.

    bench/run_benchmark --data DIR [--methods fp32 tf32 fp16 amp bf16] [--batches 128 256 512 1024 2048] [--repeats 5]
        [--iterations 100] [--frameworks halftone pytorch ...] [--together] [--ahead] [--gpus 0 1] [--out DIR]
        [--gpu-name NAME]

Frameworks: halftone, halftone-eager, pytorch (eager), pytorch-graph, pytorch-compile. Each repeat is a process of its own,
and frameworks take turns repeat by repeat. Results go to OUT/NAME.json after each repeat; the same command goes on where an
interrupted run stopped. A repeat that fails is recorded with its error, the rest goes on, and the exit code is 1. Without
--data a small generated set is used, without a GPU the CPU: try --width 0.125 --batches 16 --iterations 10. What is measured
and how: docs/benchmark.md.
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

import benchmark_results
import benchmark_tables

HERE = pathlib.Path(__file__).resolve().parent
METHODS = ["fp32", "tf32", "fp16", "amp", "bf16"]  # those of the article and the two that it lacks; o2 where asked for
FRAMEWORKS = ["halftone", "halftone-eager", "pytorch", "pytorch-graph", "pytorch-compile"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=[*METHODS, "o2"])
    parser.add_argument("--batches", nargs="+", type=int, default=[128, 256, 512, 1024, 2048])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--frameworks", nargs="+", default=["halftone"], choices=FRAMEWORKS)
    parser.add_argument("--data", help="folder of CIFAR-10's binary files")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("results"))
    parser.add_argument("--gpu-name", help="of the results' file; by default what the device calls itself")
    parser.add_argument("--device", help="cpu, cuda or cuda:N; by default CUDA where there is a GPU")
    parser.add_argument("--width", type=float, default=1.0, help="scales the network's channels (Halftone only)")
    parser.add_argument("--train-images", type=int, default=8000, help="of the generated set")
    parser.add_argument("--test-images", type=int, default=2000, help="of the generated set")
    parser.add_argument("--gemm", type=int, default=-1,
                        help="side of the matrices whose product is timed; by default 8192 on a GPU, 256 on the CPU; 0: not timed")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"), help="CMake's build folder")
    parser.add_argument("--jobs", type=int, default=1,
                        help="repeats at a time: for accuracy alone, since their times then say nothing")
    parser.add_argument("--gpus", nargs="+", type=int, default=[], metavar="N",
                        help="GPUs of one kind, by number, that work at the same time; each batch size stays on one of them")
    parser.add_argument("--together", action="store_true",
                        help="PyTorch's repeats of a method and batch size in one process, which searches once")
    parser.add_argument("--ahead", action="store_true",
                        help="the next PyTorch process loads PyTorch while the one before measures, and waits for its turn")
    parser.add_argument("--init", choices=["uniform", "kaiming"], default="uniform",
                        help="of the weights: PyTorch's default, or Kaiming's normal, fan-out, for all layers but the last")
    parser.add_argument("--applied", action="store_true",
                        help="train until --iterations steps are applied, skipped ones not counted (Halftone only)")
    parser.add_argument("--python", default=sys.executable, help="the Python that has PyTorch")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for a repeat; then it counts as failed")
    parser.add_argument("--commit", help="of this tree, where git cannot tell")
    args = parser.parse_args()
    if min(args.repeats, args.iterations, args.jobs, *args.batches) < 1:
        parser.error("--batches, --repeats, --iterations and --jobs are at least 1")
    if args.ahead and args.jobs > 1:
        parser.error("--ahead is for times, which --jobs above 1 spoils")
    if args.gpus and args.device:
        parser.error("--gpus and --device both say where to run; give one of them")
    if len(set(args.gpus)) < len(args.gpus):
        parser.error(f"--gpus {' '.join(map(str, args.gpus))} names a GPU twice")
    if any(f.startswith("pytorch") for f in args.frameworks):
        if not args.data:
            parser.error("PyTorch reads the same files as Halftone: give --data DIR (scripts/download_cifar10.sh)")
        if args.width != 1 or args.device not in (None, "cuda", "cuda:0"):
            parser.error("beside PyTorch the network has its full --width 1 and the device is cuda:0")
    return args


def output_of(command):
    """A command's first line; "unknown" where it is not there or fails."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    lines = done.stdout.splitlines()
    return lines[0] if done.returncode == 0 and lines else "unknown"


def start(command, gpu=None):
    environment = os.environ if gpu is None else {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=environment)


def measure(command, timeout, count=1, gpu=None, process=None):
    """What a process measured, its last `count` lines; in place of those that are missing, why there is nothing. The
    process may have been started already, with --wait: it then goes on by a line of input."""
    begin, out, error = time.monotonic(), "", "no output"
    try:
        process = process or start(command, gpu)
        try:
            out, err = process.communicate("go\n", timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()[0], ""
            error = f"not done after {timeout:g} s"
        else:
            if process.returncode != 0:
                words = [line for line in err.splitlines() if line.strip()] or ["no output"]
                error = f"exit code {process.returncode}: {words[-1][:500]}"
    except OSError as e:
        error = str(e)
    lines = [line for line in out.splitlines() if line.startswith("{")][-count:]
    try:
        results = [{"status": "ok", **json.loads(line, parse_constant=lambda name: None)} for line in lines]  # NaN: none
    except ValueError as e:
        results, error = [], str(e)
    results += [{"status": "failed", "error": error}] * (count - len(results))
    return [{**result, "process_s": round((time.monotonic() - begin) / count, 2)} for result in results]


class Turns:
    """The processes of a GPU in their order. With --ahead the next one of PyTorch's is started when one begins."""

    def __init__(self, args, gpu):
        self.args, self.gpu, self.groups, self.waiting = args, gpu, [], {}

    def command(self, turn, *more):
        group = self.groups[turn]
        return command_of(self.args, *group[0][:3], *(key[3] for key in group)) + list(more)

    def run(self, turn):
        process = self.waiting.pop(turn, None)
        later = next((i for i in range(turn + 1, len(self.groups)) if self.groups[i][0][0].startswith("pytorch")), None)
        if self.args.ahead and later is not None and later not in self.waiting:
            try:
                self.waiting[later] = start(self.command(later, "--wait"), self.gpu)
            except OSError:
                pass  # told when its turn comes
        count = len(self.groups[turn])
        return measure(self.command(turn), self.args.timeout * count, count, self.gpu, process)

    def stop(self):
        for process in self.waiting.values():
            process.kill()
            process.communicate()


def command_of(args, framework, method, batch, *numbers, iterations=None):
    common = ["--batch", batch, "--number", *numbers, "--iterations", iterations or args.iterations]
    if args.data:
        common += ["--data", args.data]
    if args.init != "uniform":
        common += ["--init", args.init]
    name, _, way = framework.partition("-")
    if name == "pytorch":
        command = [args.python, HERE / "pytorch_benchmark.py", "--mode", method + (way and "-" + way), *common]
    else:
        command = [args.program, "repeat", "--method", method, *common, *args.device_flag, "--width", args.width,
                   "--train-images", args.train_images, "--test-images", args.test_images]
        command += ["--eager"] if way == "eager" else []
        command += ["--applied"] if args.applied else []
    return [str(part) for part in command]


def data_of(args):
    """What the images are, wherever they lie: the original CIFAR-10 or a copy of it."""
    if not args.data:
        return f"generated, {args.train_images} and {args.test_images} images"
    for folder in (pathlib.Path(args.data) / "cifar-10-batches-bin", pathlib.Path(args.data)):
        if (file := folder / "test_batch.bin").exists():
            return f"CIFAR-10 files; SHA-256 of test_batch.bin {hashlib.sha256(file.read_bytes()).hexdigest()}"
    sys.exit(f"--data {args.data}: no test_batch.bin there; fetch CIFAR-10 with scripts/download_cifar10.sh")


def start_document(args):
    """The machine, asked now; its file's earlier repeats, when they were measured in the same way."""
    print("Asking the device; timing products of matrices ...", flush=True)
    facts = measure([str(args.program), "hardware", *args.device_flag, "--gemm", str(args.gemm)], args.timeout,
                    gpu=next(iter(args.gpus), None))[0]
    if facts["status"] == "failed":
        sys.exit(f"{args.program}: {facts['error']}")
    cpu = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    hardware = {key: facts[key] for key in ("device", "gpu", "halftone", "libraries") if key in facts}
    hardware["cpu"] = cpu[1] if cpu else "unknown"
    if "gpu" in facts:
        query = "driver_version,clocks.max.sm,power.limit,memory.total"
        hardware["nvidia-smi"] = {query: output_of(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"])}
    settings = {"protocol": "SGD lr 0.01 momentum 0.9, inputs (x-0.5)/0.5, in order, last batch dropped, seed 7",
                "iterations": args.iterations, "applied": args.applied, "init": args.init, "jobs": args.jobs,
                "width": args.width, "data": data_of(args)}
    if args.gpus and "gpu" not in facts:
        sys.exit(f"--gpus: the program found no GPU {args.gpus[0]}; it runs on {facts.get('device', 'the CPU')}")
    name = args.gpu_name or re.sub(r"[^\w.-]+", "-", hardware.get("gpu", "CPU"))
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"{name}.json"
    document = {"gpu_name": name, "settings": settings, "repeats": []}
    if path.exists():
        document = benchmark_results.load(path)
        if document["settings"] != settings:
            sys.exit(f"{path}: holds results of other settings ({document['settings']}); choose another --out or "
                     f"--gpu-name, or remove it. Asked for: {settings}")
        if (before := document["hardware"].get("gpu")) != hardware.get("gpu"):
            sys.exit(f"{path}: holds results of {before or 'a CPU'}, but this is {hardware.get('gpu', 'a CPU')}; choose "
                     f"another --gpu-name")
    document.update(hardware=hardware, gemm_n=facts.get("gemm_n"), gemm_tflops=facts.get("gemm_tflops", {}))
    print(f"{name}: {hardware.get('gpu', hardware['cpu'])}", flush=True)
    return path, document


def todo(args, document):
    """Repeats outermost, so that a run that ends early has all series; what failed before is tried again."""
    done = {(r["framework"], r["method"], r["batch"], r["number"]) for r in document["repeats"] if r["status"] == "ok"}
    return [key for number in range(args.repeats) for batch in args.batches for method in args.methods
            for framework in args.frameworks if (key := (framework, method, batch, number)) not in done]


def processes(args, keys):
    """The keys of each process: one or, for PyTorch with --together, all of a method and batch size."""
    groups = {}
    for framework, method, batch, number in keys:
        own = None if args.together and framework.startswith("pytorch") else number
        groups.setdefault((framework, method, batch, own), []).append((framework, method, batch, number))
    return list(groups.values())


def gpu_of(args):
    """The GPU of each batch size, None where there is no choice: the largest first, each to the one with the least to do."""
    load, places = dict.fromkeys(args.gpus, 0), dict.fromkeys(args.batches)
    for batch in sorted(places, reverse=True) if load else ():
        places[batch] = min(load, key=load.get)
        load[places[batch]] += batch
    return places


def find_plans(args, document, keys):
    """On a GPU the first run ever of a method and batch size searches for plans, which later ones find in a file. So it is
    done here, and told apart: what a first run of 5 iterations takes."""
    if "gpu" not in document["hardware"]:
        return
    for method, batch in dict.fromkeys((m, b) for f, m, b, _ in keys if f.startswith("halftone")):
        result = measure(command_of(args, "halftone", method, batch, 0, iterations=5), args.timeout,
                         gpu=args.places[batch])[0]
        if seconds := result.get("train_s"):
            document.setdefault("first_run_s", {}).setdefault(f"{method} {batch}", seconds)
        told = f"{seconds:.2f} s" if seconds else result["error"]
        print(f"plans of {method} batch {batch}: {told}", flush=True)


def eta(seconds, rest):
    """From what each framework's processes took so far."""
    known = {f: statistics.fmean(times) for f, times in seconds.items()}
    total = sum(known.get(key[0], max(known.values())) for key in rest)
    return f"{total / 60:.0f} min" if total >= 100 else f"{total:.0f} s"


def keep(args, document, path, key, result, commit):
    """A repeat's place in the document, and the document on disk. False: the repeat failed."""
    framework, method, batch, number = key
    result.update(framework=framework, method=method, batch=batch, number=number, commit=commit)
    if args.gpus:
        result["gpu_number"] = args.places[batch]
    if result["status"] == "ok":
        benchmark_results.derive(result, args.iterations, args.width, document["gemm_tflops"])
    document["repeats"] = [r for r in document["repeats"]
                           if (r["framework"], r["method"], r["batch"], r["number"]) != key] + [result]
    benchmark_results.save(path, document)
    return result["status"] == "ok"


def told(key, result):
    framework, method, batch, number = key
    what = f"FAILED: {result.get('error')}"
    if result["status"] == "ok":
        what = (f"{result['train_s']:.2f} s, {result['step_ms']:.3f} ms a step, test accuracy "
                f"{result['test_accuracy']:.2f} %")
    return f"{framework} {method} batch {batch} repeat {number + 1}: {what}"


def main():
    args = arguments()
    args.program = args.build / "bin" / "bench_benchmark"
    args.device_flag = ["--device", args.device] if args.device else []
    if not args.program.exists():
        sys.exit(f"{args.program} is missing; build with -DHALFTONE_BUILD_BENCH=ON, or name the build folder: --build")
    path, document = start_document(args)
    commit = args.commit or output_of(["git", "-C", str(HERE), "describe", "--always", "--dirty", "--abbrev=12"])
    keys, seconds, failed = todo(args, document), {}, 0
    if skipped := len(args.methods) * len(args.batches) * args.repeats * len(args.frameworks) - len(keys):
        print(f"{skipped} repeats are in {path} already", flush=True)
    args.places = gpu_of(args)
    find_plans(args, document, keys)
    groups, count = processes(args, keys), 0
    pools = {gpu: concurrent.futures.ThreadPoolExecutor(args.jobs) for gpu in args.gpus or [None]}
    turns = {gpu: Turns(args, gpu) for gpu in pools}
    for group in groups:
        turns[args.places[group[0][2]]].groups.append(group)
    running = {pools[gpu].submit(t.run, turn): group for gpu, t in turns.items() for turn, group in enumerate(t.groups)}
    try:
        for run in concurrent.futures.as_completed(running):
            for key, result in zip(running.pop(run), run.result()):
                count += 1
                failed += not keep(args, document, path, key, result, commit)
                seconds.setdefault(key[0], []).append(result["process_s"] / args.jobs / len(pools))
                rest = [k for group in running.values() for k in group]
                print(f"[{count}/{len(keys)}] {told(key, result)}"
                      + (f"; {eta(seconds, rest)} to go" if rest and count + len(rest) == len(keys) else ""), flush=True)
    finally:
        for gpu, pool in pools.items():
            pool.shutdown(cancel_futures=True)
            turns[gpu].stop()
    print()
    print(benchmark_tables.report({document["gpu_name"]: benchmark_results.summarize(document)}))
    print(f"{path}: {len(document['repeats'])} repeats, {failed} failed now. "
          f"Plots: python3 {HERE / 'make_plot.py'} --results {args.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
