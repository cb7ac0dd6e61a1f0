#!/usr/bin/env python3
"""PyTorch's microseconds a step of bench/linear_gpu.cpp's training: Linear 1024 -> 512, batch 64, MSE, SGD.

    python3 bench/pytorch_toy.py [--modes fp32 tf32 amp] [--windows 7] [--steps 500]

fp32, tf32 and amp (FP16 autocast; eager with GradScaler, in the graph with a fixed loss scale), each as it is and as one
CUDA graph of the whole step. A line of JSON a measurement; medians of windows.
"""
import argparse
import json
import statistics
import time

import torch
from pytorch_vgg16 import captured
from torch import nn


def make_step(mode, graph):
    torch.manual_seed(0)
    x, y = torch.randn(64, 1024, device="cuda"), torch.randn(64, 512, device="cuda")
    model = nn.Linear(1024, 512).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    amp = mode == "amp"
    scaler = torch.amp.GradScaler("cuda", enabled=amp and not graph)
    kept = torch.zeros((), device="cuda")
    if amp and graph:
        optimizer.grad_scale = torch.full((), 1024.0, device="cuda")  # the fused step divides by it

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.float16, enabled=amp):
            loss = nn.functional.mse_loss(model(x), y)
        if amp and graph:
            (loss * 1024).backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        kept.copy_(loss.detach())

    return (captured(step) if graph else step), kept


def measure(mode, graph, windows, steps):
    torch.set_float32_matmul_precision("high" if mode == "tf32" else "highest")
    step, loss = make_step(mode, graph)
    for _ in range(20):
        step()
    first = loss.item()
    times = []
    for _ in range(windows):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        times.append(1e6 * (time.perf_counter() - start) / steps)
    return {"name": "pytorch", "mode": mode, "graph": graph, "us": round(statistics.median(times), 2),
            "spread_us": round(max(times) - min(times), 2), "first_loss": round(first, 6),
            "last_loss": round(loss.item(), 6)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="+", default=["fp32", "tf32", "amp"], choices=["fp32", "tf32", "amp"])
    parser.add_argument("--windows", type=int, default=7)
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("SKIPPED: no CUDA device")
        return
    for mode in args.modes:
        for graph in (False, True):
            print(json.dumps(measure(mode, graph, args.windows, args.steps)), flush=True)


if __name__ == "__main__":
    main()
