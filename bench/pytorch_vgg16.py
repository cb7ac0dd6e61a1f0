#!/usr/bin/env python3
"""The peer on the GPU: one training step of the same VGG16 in PyTorch, timed by CUDA events.

    python3 bench/pytorch_vgg16.py [--modes fp32 tf32] [--batches 128 256 512 1024 2048] [--windows 7] [--steps 20]

Modes: fp32, tf32, amp (FP16 autocast and GradScaler), each eager and channels_last, with cudnn.benchmark and fused SGD;
amp-graph (the whole step in one CUDA graph, static loss scale), amp-compile (torch.compile, reduce-overhead). Data is a
fixed random batch on the GPU. A line of JSON a measurement: median over windows of `steps` steps; the allocator's peaks, in
use and reserved, with everything since the model was made (cudnn.benchmark's trials too); whether TF32 was in use.
"""
import argparse
import gc
import json
import statistics

import torch
from torch import nn


def vgg16():
    layers, channels = [], 3
    for width, convs in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convs):
            layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    for width in (4096, 4096):
        layers += [nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True)]
        channels = width
    return nn.Sequential(*layers, nn.Conv2d(channels, 10, 1, bias=False), nn.Flatten())


def make_step(mode, batch):
    model = vgg16().cuda().to(memory_format=torch.channels_last)
    x = torch.randn(batch, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (batch,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    amp = mode.startswith("amp")
    if mode == "amp-compile":
        torch._dynamo.reset()  # else a second batch size would be compiled for sizes that vary
        model = torch.compile(model, mode="reduce-overhead", dynamic=False)
    scaler = torch.amp.GradScaler("cuda", enabled=amp and mode != "amp-graph")

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16, enabled=amp):
            loss = nn.functional.cross_entropy(model(x), y)
        if mode == "amp-graph":
            (loss * 1024).backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    if mode != "amp-graph":
        return step
    optimizer.grad_scale = torch.full((), 1024.0, device="cuda")  # the fused step divides by it, as under GradScaler
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(5):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return lambda kept=step: graph.replay()  # the graph works in the memory of what `step` holds


def tf32_in_use():
    """Whether a convolution and a product of FP32 numbers with 23-bit mantissas are rounded to TF32."""
    torch.manual_seed(1)
    x, w = torch.randn(64, 64, 16, 16, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
    a, b = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")

    def error(f, *tensors):
        exact = f(*(t.double() for t in tensors))
        return ((f(*tensors).double() - exact).norm() / exact.norm()).item()

    rounded = [error(nn.functional.conv2d, x, w) > 5e-5, error(torch.matmul, a, b) > 5e-5]
    return rounded[0] if rounded[0] == rounded[1] else "conv %s, matmul %s" % tuple(rounded)


def measure(mode, batch, windows, steps):
    torch.manual_seed(7)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = mode != "fp32"
    torch.set_float32_matmul_precision("highest" if mode == "fp32" else "high")
    gc.collect()  # the batch before
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step = make_step(mode, batch)
    for _ in range(10):
        step()
    torch.cuda.synchronize()
    times = []
    for _ in range(windows):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(steps):
            step()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / steps)
    result = {"name": "pytorch", "mode": mode, "batch": batch, "ms": round(statistics.median(times), 4),
              "spread_ms": round(max(times) - min(times), 4),
              "images_per_s": round(1000 * batch / statistics.median(times)),
              "peak_mib": round(torch.cuda.max_memory_allocated() / 2**20),
              "reserved_mib": round(torch.cuda.max_memory_reserved() / 2**20)}
    return {**result, "tf32": tf32_in_use()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="+", default=["fp32", "tf32"],
                        choices=["fp32", "tf32", "amp", "amp-graph", "amp-compile"])
    parser.add_argument("--batches", nargs="+", type=int, default=[128, 256, 512, 1024, 2048])
    parser.add_argument("--windows", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    print(json.dumps({"torch": torch.__version__, "cudnn": torch.backends.cudnn.version(),
                      "gpu": torch.cuda.get_device_name()}), flush=True)
    for mode in args.modes:
        for batch in args.batches:
            print(json.dumps(measure(mode, batch, args.windows, args.steps)), flush=True)


if __name__ == "__main__":
    main()
