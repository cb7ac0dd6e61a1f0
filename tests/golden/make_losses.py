#!/usr/bin/env python3
"""Writes losses.json: the first ten losses of two trainings in PyTorch, which tests/test_golden.cpp repeats.

    python3 make_losses.py > losses.json          (needs PyTorch and NumPy)

Weights and data come from Philox4x32-10 streams, so that nothing else needs to be stored: element i of a tensor is number
i of its stream, as a uniform value of 24 bits. All streams have seed 42; the stream numbers are given below.
"""
import json

import numpy as np
import torch
from torch import nn

SEED = 42


def philox(stream, n):
    """The first n 32-bit numbers of a stream (Salmon et al. 2011)."""
    blocks = np.arange((n + 3) // 4, dtype=np.uint64)
    low = np.uint64(0xFFFFFFFF)
    c = [blocks & low, blocks >> np.uint64(32), np.full_like(blocks, stream), np.zeros_like(blocks)]
    k0, k1 = np.uint64(SEED), np.uint64(0)
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ k0, p1 & low, (p0 >> np.uint64(32)) ^ c[3] ^ k1, p0 & low]
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return np.stack(c, axis=1).reshape(-1)[:n]


def uniform(stream, shape, bound):
    """Uniform in [-bound, bound), computed in float64, rounded to float32."""
    u = (philox(stream, int(np.prod(shape))) >> np.uint64(8)).astype(np.float64) * 2.0**-24
    return torch.from_numpy((-bound + 2 * bound * u).astype(np.float32)).reshape(shape)


def train(model, loss_of, lr, momentum, steps=10):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def linear_regression():
    """Linear 1024 -> 512, batch 64, MSE, SGD 1e-3. Streams: 0 weight, 1 bias, 2 x, 3 y."""
    model = nn.Linear(1024, 512)
    with torch.no_grad():
        model.weight.copy_(uniform(0, (512, 1024), 1 / 32))
        model.bias.copy_(uniform(1, (512,), 1 / 32))
    x, y = uniform(2, (64, 1024), 1), uniform(3, (64, 512), 1)
    return train(model, lambda m: nn.functional.mse_loss(m(x), y), 1e-3, 0.0)


def vgg16(batch, lr, dtype):
    """VGG16 with batch norm, eighth width, 1x1-convolution head, SGD with momentum 0.9.

    Streams: 4 x (drawn as [n, h, w, c]), 5 labels (bits mod 10), 10 + i the i-th convolution (drawn as [out, in, kh, kw],
    bound sqrt(3 / fan_in)). Batch norms start at weight 1, bias 0.
    """
    layers, c = [], 3
    for width, convs in ((8, 2), (16, 2), (32, 3), (64, 3), (64, 3)):
        for _ in range(convs):
            layers += [nn.Conv2d(c, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            c = width
        layers.append(nn.MaxPool2d(2))
    for width in (512, 512):
        layers += [nn.Conv2d(c, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        c = width
    layers += [nn.Conv2d(c, 10, 1, bias=False), nn.Flatten()]
    model = nn.Sequential(*layers)
    convs = [m for m in model if isinstance(m, nn.Conv2d)]
    with torch.no_grad():
        for i, conv in enumerate(convs):
            fan_in = conv.weight[0].numel()
            conv.weight.copy_(uniform(10 + i, tuple(conv.weight.shape), (3 / fan_in) ** 0.5))
    x = uniform(4, (batch, 32, 32, 3), 1).permute(0, 3, 1, 2).contiguous().to(dtype)
    y = torch.from_numpy((philox(5, batch) % np.uint64(10)).astype(np.int64))
    return train(model.to(dtype), lambda m: nn.functional.cross_entropy(m(x), y), lr, 0.9)


if __name__ == "__main__":
    torch.set_num_threads(1)
    # FP64 at the usual rate. In FP32 rounding grows by a factor of ten thousand over these steps (PyTorch's own FP32 and
    # FP64 losses part by 2 % at the fourth), so FP32 is compared at a rate and batch where the orders of
    # summation tried (this CPU's instructions or portable ones, one thread or two) stay below 4e-5.
    losses = {"linear_regression": linear_regression(), "vgg16_f64": vgg16(32, 0.01, torch.float64),
              "vgg16_f32": vgg16(32, 0.0003, torch.float32)}
    print(json.dumps({"torch": torch.__version__, **losses}, indent=2))
