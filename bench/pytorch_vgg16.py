#!/usr/bin/env python3
"""The peer on the GPU: one training step of the same VGG16 in PyTorch, timed by CUDA events.

    python3 bench/pytorch_vgg16.py [--modes fp32 tf32] [--batches 128 256 512 1024 2048] [--windows 7] [--steps 20]

Modes: fp32, tf32, amp (FP16 autocast and GradScaler), bf16 (autocast), fp16 (half network, FP32 masters, loss scale 128),
each eager and channels_last, with cudnn.benchmark and fused SGD; with -graph the whole step in one CUDA graph (amp then with
a fixed loss scale), with -compile the network by torch.compile, reduce-overhead. Data is a fixed random batch on the GPU. A
line of JSON a measurement: median over windows of `steps` steps; the allocator's peaks, in use and reserved, with everything
since the model was made (cudnn.benchmark's trials too); whether TF32 was in use.
"""
import argparse
import gc
import json
import statistics

import torch
from torch import nn

METHODS = ("fp32", "tf32", "fp16", "amp", "bf16")


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


def use_mode(mode):
    """Sets what is the process's; gives method and way of running: ("amp", "graph")."""
    method, _, way = mode.partition("-")
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = method != "fp32"
    torch.set_float32_matmul_precision("highest" if method == "fp32" else "high")
    return method, way or "eager"


class HalfWithMasters:
    """Half parameters, batch norm FP32, beside FP32 masters that SGD moves: Apex's network_to_half and FP16_Optimizer."""

    def __init__(self, model, scale):
        model.half()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.float()
        self.params = list(model.parameters())
        self.masters = [p.detach().clone().float().requires_grad_() for p in self.params]
        for master in self.masters:
            master.grad = torch.zeros_like(master)
        self.sgd = torch.optim.SGD(self.masters, lr=0.01, momentum=0.9, fused=True)
        self.sgd.grad_scale = torch.full((), float(scale), device="cuda")  # the fused step divides by it

    def zero_grad(self, set_to_none=True):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        torch._foreach_copy_([m.grad for m in self.masters], [p.grad for p in self.params])
        self.sgd.step()
        torch._foreach_copy_(self.params, self.masters)


def make_step(mode, model, x, y, kept_loss, optimizer=None, label_smoothing=0.0):
    """A whole training step of the CUDA model on x and y, which may be written anew before each; its loss is copied out.
    `optimizer`, if not the benchmark's SGD, is of FP32 parameters."""
    method, way = use_mode(mode)
    model.to(memory_format=torch.channels_last)
    scale = {"fp16": 128, "amp": 1024}.get(method, 1)  # amp: where it is fixed, in a graph
    if method == "fp16":
        optimizer = HalfWithMasters(model, scale)
    elif optimizer is None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    dynamic = method == "amp" and way != "graph"
    scaler = torch.amp.GradScaler("cuda", enabled=dynamic)
    if method == "amp" and not dynamic:
        optimizer.grad_scale = torch.full((), float(scale), device="cuda")
    forward = model
    if way == "compile":
        torch._dynamo.reset()  # else a second batch size would be compiled for sizes that vary
        forward = torch.compile(model, mode="reduce-overhead", dynamic=False)
    half = torch.bfloat16 if method == "bf16" else torch.float16

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", half, enabled=method in ("amp", "bf16")):
            logits = forward(x.half() if method == "fp16" else x)
            loss = nn.functional.cross_entropy(logits.float(), y, label_smoothing=label_smoothing)
        if dynamic:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            (loss * scale if scale != 1 else loss).backward()
            optimizer.step()
        kept_loss.copy_(loss.detach())

    return captured(step) if way == "graph" else step


def captured(step, warm_up=5):
    """The first calls run as they are, beside the default stream as capture wants it; then one CUDA graph is replayed."""
    stream, graph, calls = torch.cuda.Stream(), None, 0

    def run():
        nonlocal graph, calls
        calls += 1
        if calls <= warm_up:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                step()
            torch.cuda.current_stream().wait_stream(stream)
            return
        if graph is None:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
        graph.replay()

    return run


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
    gc.collect()  # the batch before
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    x = torch.randn(batch, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (batch,), device="cuda")
    step = make_step(mode, vgg16().cuda(), x, y, torch.zeros((), device="cuda"))
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
                        choices=[m + way for m in METHODS for way in ("", "-graph", "-compile")])
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
