#!/usr/bin/env python3
"""PyTorch's side of one repeat of the benchmark, the twin of bench/benchmark.cpp: same protocol, same line of JSON.

    python3 bench/pytorch_benchmark.py --mode amp --batch 128 --data DIR [--number 0 ...] [--iterations 100] [--wait]

--mode: as bench/pytorch_vgg16.py's. As on our side the training set's bytes are on the GPU and batches are made there, and
no loss is read before the end, so that the clock measures training and not the loading of files. Several numbers are several
repeats in one process, a line each: cudnn.benchmark then searches in the first one only.
"""
import argparse
import gc
import json
import math
import pathlib
import statistics
import sys
import time

import numpy
import torch
from pytorch_vgg16 import METHODS, make_step, vgg16
from torch import nn

WARM_UP, WINDOWS, MIB = 5, 5, 2**20  # as in bench/benchmark.cpp


def read_cifar10(folder, files, device="cuda"):
    """Bytes [n, 3, 32, 32], channels last, and labels [n], both on the device."""
    folder = pathlib.Path(folder)
    if (folder / "cifar-10-batches-bin").is_dir():
        folder = folder / "cifar-10-batches-bin"
    records = numpy.concatenate([numpy.fromfile(folder / name, numpy.uint8).reshape(-1, 3073) for name in files])
    labels = torch.from_numpy(records[:, 0].astype(numpy.int64)).to(device)
    images = torch.from_numpy(numpy.ascontiguousarray(records[:, 1:])).view(-1, 3, 32, 32).to(device)
    return images.contiguous(memory_format=torch.channels_last), labels


@torch.no_grad()
def kaiming_fan_out(model):
    """models/init.h: all weights but the last layer's, which keeps PyTorch's default. Gives those weights."""
    weights = [p for p in model.parameters() if p.dim() > 1][:-1]
    for weight in weights:
        nn.init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu")
    return weights


def batches(images, labels, size):
    """In order, without the last, smaller one."""
    for i in range(0, len(labels) - size + 1, size):
        yield (images[i:i + size].float() / 255 - 0.5) / 0.5, labels[i:i + size]


@torch.no_grad()
def evaluate(model, method, images, labels, size):
    """Mean loss and accuracy in percent."""
    model.eval()
    half = torch.bfloat16 if method == "bf16" else torch.float16
    loss, correct, count = 0.0, 0, 0
    for x, y in batches(images, labels, size):
        with torch.autocast("cuda", half, enabled=method in ("amp", "bf16")):
            logits = model(x.half() if method == "fp16" else x).float()
        loss += nn.functional.cross_entropy(logits, y).item() * size
        correct += (logits.argmax(1) == y).sum().item()
        count += size
    model.train()
    return loss / count, 100 * correct / count, count


def step_ms(step, guess_s):
    """Median milliseconds a step over windows of about 0.1 s."""
    steps = min(max(math.ceil(0.1 / guess_s), 3), 50)
    step()
    torch.cuda.synchronize()
    times = []
    for _ in range(WINDOWS):
        start = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - start) / steps)
    return statistics.median(times)


class Networks:
    """Number i is the network that one process, seeded once, would make i-th, from 0. Asked for in order each is made once."""

    def __init__(self, seed):
        self.seed, self.made, self.state = seed, 0, None  # state: of the random numbers after those that are made

    def __call__(self, number):
        torch.manual_seed(self.seed)  # CUDA's random numbers, too
        if self.state is None or number < self.made:
            self.made = 0
        else:
            torch.set_rng_state(self.state)
        for _ in range(self.made, number + 1):
            model = vgg16()
        self.made, self.state = number + 1, torch.get_rng_state()
        return model


def run(args, networks, number):
    gc.collect()  # of the repeat before
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    images, labels = read_cifar10(args.data, [f"data_batch_{i}.bin" for i in range(1, 6)])
    if args.batch > len(labels):
        sys.exit(f"--batch {args.batch} is larger than the training set of {len(labels)} images")
    model = networks(number)
    if args.init == "kaiming":
        kaiming_fan_out(model)
    model.cuda()
    x = torch.zeros(args.batch, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    y = torch.zeros(args.batch, dtype=torch.int64, device="cuda")
    loss = torch.zeros((), device="cuda")
    losses = torch.zeros(args.iterations, device="cuda")
    step = make_step(args.mode, model, x, y, loss)

    def step_on(batch):
        x.copy_(batch[0])
        y.copy_(batch[1])
        step()

    warm_up_s, iteration = None, 0
    torch.cuda.synchronize()
    start = time.perf_counter()
    while iteration < args.iterations:
        for batch in batches(images, labels, args.batch):
            step_on(batch)
            losses[iteration].copy_(loss)
            iteration += 1
            if iteration == WARM_UP:
                torch.cuda.synchronize()
                warm_up_s = time.perf_counter() - start
            if iteration == args.iterations:
                break
    torch.cuda.synchronize()
    train_s = time.perf_counter() - start
    memory = {"peak_mib": torch.cuda.max_memory_allocated() / MIB,
              "reserved_mib": torch.cuda.max_memory_reserved() / MIB}
    free, total = torch.cuda.mem_get_info()

    method = args.mode.partition("-")[0]
    test_loss, accuracy, count = evaluate(model, method, *read_cifar10(args.data, ["test_batch.bin"]), args.batch)
    return {"train_s": train_s, "warm_up_s": warm_up_s,
            "step_ms": step_ms(lambda: step_on(batch), train_s / args.iterations),
            **memory, "driver_mib": (total - free) / MIB,
            "train_loss": losses.mean().item(), "last_loss": losses[-1].item(),
            "test_loss": test_loss, "test_accuracy": accuracy, "test_images": count, "seed": args.seed,
            "data": f"CIFAR-10 files in {args.data}",
            "versions": f"torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", required=True,
                        choices=[m + way for m in METHODS for way in ("", "-graph", "-compile")])
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--data", required=True, help="folder of CIFAR-10's binary files")
    parser.add_argument("--number", type=int, nargs="+", default=[0], help="of these repeats, from 0")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--init", choices=["uniform", "kaiming"], default="uniform")
    parser.add_argument("--wait", action="store_true", help="for a line of input, before the GPU is touched")
    args = parser.parse_args()
    if args.wait and not sys.stdin.readline():
        return  # whoever would have said so is gone
    networks = Networks(args.seed)
    for number in args.number:
        print(json.dumps(run(args, networks, number)), flush=True)


if __name__ == "__main__":
    main()
