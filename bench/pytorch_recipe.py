#!/usr/bin/env python3
"""PyTorch's twin of `train_vgg16 --recipe fast|best --amp O1`: the same network, recipe and figures (docs/training.md).

    python3 bench/pytorch_recipe.py --data DIR --recipe fast [--way graph|compile|eager] [--seed 0] [--epochs N ...]

Bytes stay on the GPU; each epoch is shuffled, mirrored, cropped, cut and normalised there at once. FP16 autocast, fused SGD,
channels_last; --way graph: the whole step in a CUDA graph, with a fixed loss scale; compile: torch.compile's reduce-overhead;
eager. A line of JSON: test accuracies after the last epoch, raw and of averaged weights, each also with mirrored images
(tta); train_s, the clock of all epochs with their data; warm_up_s before it, for compiling, capturing and cudnn.benchmark,
whose steps are undone; total_s, of the process since its imports. --device cpu runs eagerly in FP32, to try it.
"""
import argparse
import json
import sys
import time

import torch
from pytorch_benchmark import kaiming_fan_out, read_cifar10
from pytorch_vgg16 import make_step, vgg16
from torch import nn

COMMON = {"batch": 256, "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "head_lr": 0.1, "label_smoothing": 0.1, "peak": 0.2,
          "init": "dirac", "flip": "alternating"}
RECIPES = {"fast": {**COMMON, "epochs": 20, "cutout": 8, "ema": 0.995}, "best": {**COMMON, "epochs": 47, "cutout": 12, "ema": 0.998}}
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
WARM_UP = 12  # steps before the clock


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of CIFAR-10's binary files")
    parser.add_argument("--recipe", choices=RECIPES, default="fast")
    parser.add_argument("--way", choices=["graph", "compile", "eager"], default="graph")
    parser.add_argument("--seed", type=int, default=0)
    recipe = parser.add_argument_group("the recipe's, unless given")
    recipe.add_argument("--epochs", type=int)
    recipe.add_argument("--batch", type=int)
    recipe.add_argument("--lr", type=float)
    recipe.add_argument("--momentum", type=float)
    recipe.add_argument("--weight-decay", type=float)
    recipe.add_argument("--head-lr", type=float, help="learning rate of the last layer's weight, times --lr")
    recipe.add_argument("--label-smoothing", type=float)
    recipe.add_argument("--peak", type=float, help="of the training, where the learning rate is highest")
    recipe.add_argument("--init", choices=["kaiming", "dirac"])
    recipe.add_argument("--flip", choices=["random", "alternating"])
    recipe.add_argument("--cutout", type=int)
    recipe.add_argument("--ema", type=float, help="decay a step; 0: none")
    parser.add_argument("--ema-every", type=int, default=5)
    parser.add_argument("--limit", type=int, default=0, help="only the first N images of each set")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    args = parser.parse_args()
    for name, value in RECIPES[args.recipe].items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.device == "cpu" and args.way != "eager":
        parser.error("--device cpu goes with --way eager")
    return args


def triangular(step, total, peak, end=0.01):
    """From 0 to 1 at `peak` of the total, then down to `end`: optim/schedule.cpp's triangular:PEAK."""
    top = peak * total
    return step / top if step < top else 1 + (end - 1) * (step - top) / (total - top)


@torch.no_grad()
def initialise(model, init):
    """As kaiming_fan_out; dirac: and the identity in the kernels that have a channel of their own (models/init.h)."""
    for weight in kaiming_fan_out(model):
        if init == "dirac":
            nn.init.dirac_(weight[:weight.shape[1]])


def normalised(images):
    """[n, 32, 32, 3] of bytes -> FP32 [n, 3, 32, 32], channels last."""
    mean, std = (torch.tensor(v, device=images.device) for v in (MEAN, STD))
    return (((images.float() / 255) - mean) / std).permute(0, 3, 1, 2)


def reflect(i, n):
    return (n - 1) - ((n - 1) - i.abs()).abs()


def augment(images, flips, cutout, pad=4):
    """As data/augment_math.h: a random crop of the image with a reflected border, mirrored or not, then a square of zeros around
    a random pixel, clipped. Works on pieces, for the memory of FP32 copies."""
    size, device = images.shape[1], images.device
    line = torch.arange(size, device=device)
    out = []
    for part, flip in zip(images.split(8192), flips.view(-1, 1).split(8192)):
        n = len(part)

        def draw(low, high):
            return torch.randint(low, high, (n, 1), device=device)

        centre = draw(0, size * size)
        rows = reflect(line + draw(-pad, pad + 1), size)
        columns = reflect(torch.where(flip, size - 1 - line, line) + draw(-pad, pad + 1), size)
        x = normalised(part[torch.arange(n, device=device).view(-1, 1, 1), rows.unsqueeze(2), columns.unsqueeze(1)])
        top, left = (edge - cutout // 2 for edge in (torch.div(centre, size, rounding_mode="floor"), centre % size))
        cut = ((line >= top) & (line < top + cutout)).unsqueeze(2) & ((line >= left) & (line < left + cutout)).unsqueeze(1)
        out.append(x.masked_fill_(cut.unsqueeze(1), 0))
    return torch.cat(out)


class Average:
    """optim/ema.h: parameters and running statistics, averaged each `every` steps."""

    def __init__(self, model, decay, every):
        device = next(model.parameters()).device
        self.model, self.every, self.decay = vgg16().to(device, memory_format=torch.channels_last), every, decay**every
        self.model.load_state_dict(model.state_dict())
        self.pairs = [(a, s) for a, s in zip(self.model.state_dict().values(), model.state_dict().values())
                      if s.is_floating_point()]

    @torch.no_grad()
    def update(self, step):
        if step % self.every:
            return
        rate = max(1 - self.decay, 9 / (10 + step // self.every))
        averages, sources = (list(tensors) for tensors in zip(*self.pairs))
        if hasattr(torch, "_foreach_lerp_"):
            torch._foreach_lerp_(averages, sources, rate)
        else:
            for a, s in self.pairs:
                a.lerp_(s, rate)


@torch.no_grad()
def accuracies(model, images, labels, half):
    """Share of right answers, and that of the mean logits of each image and its mirror image."""
    model.eval()
    right = [0, 0]
    for part, y in zip(images.split(1000), labels.split(1000)):
        x = normalised(part)
        with torch.autocast("cuda", enabled=half):
            z = model(x).float()
            both = z + model(x.flip(3)).float()
        for i, logits in enumerate((z, both)):
            right[i] += (logits.argmax(1) == y).sum().item()
    model.train()
    return [count / len(labels) for count in right]


def cpu_step(model, x, y, kept_loss, optimizer, label_smoothing):
    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x), y, label_smoothing=label_smoothing)
        loss.backward()
        optimizer.step()
        kept_loss.copy_(loss.detach())

    return step


def warm_up(step, model, optimizer, x, y):
    """Takes steps on noise, then puts weights, statistics and momentum back in place, where a captured step finds them."""
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x.normal_()
    y.random_(0, 10)
    for _ in range(WARM_UP):
        step()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(kept[name])
        for state in optimizer.state.values():
            state["momentum_buffer"].zero_()  # the same as none: 0.9 * 0 + gradient


def run(args):
    begin, cuda = time.perf_counter(), args.device == "cuda"
    wait = torch.cuda.synchronize if cuda else lambda: None
    images, labels, test_images, test_labels = (
        tensor[:args.limit or None] for files in ([f"data_batch_{i}.bin" for i in range(1, 6)], ["test_batch.bin"])
        for tensor in read_cifar10(args.data, files, args.device))
    images, test_images = images.permute(0, 2, 3, 1), test_images.permute(0, 2, 3, 1)  # channels last: no copy
    per_epoch = len(labels) // args.batch
    if per_epoch == 0:
        sys.exit(f"--batch {args.batch} is larger than the training set of {len(labels)} images")
    total = args.epochs * per_epoch

    torch.manual_seed(args.seed)
    model = vgg16()
    initialise(model, args.init)
    model.to(args.device, memory_format=torch.channels_last)
    scales = (1.0, 1.0, args.head_lr)  # of the learning rate in each group
    lrs = [torch.zeros((), device=args.device) for _ in scales]  # read by a captured step, too
    rates = torch.tensor([args.lr * triangular(i, total, args.peak) for i in range(total)], device=args.device)
    weights = [p for p in model.parameters() if p.dim() > 1]
    norms = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": params, "weight_decay": decay} for params, decay in
              ((weights[:-1], args.weight_decay), (norms, 0.0), (weights[-1:], args.weight_decay))]
    for group, lr in zip(groups, lrs):
        group["lr"] = lr if cuda else 0.0
    optimizer = torch.optim.SGD(groups, momentum=args.momentum, nesterov=True, **({"fused": True} if cuda else {}))

    x = torch.zeros(args.batch, 3, 32, 32, device=args.device).to(memory_format=torch.channels_last)
    y, loss = torch.zeros(args.batch, dtype=torch.int64, device=args.device), torch.zeros((), device=args.device)
    if cuda:
        mode = "amp" if args.way == "eager" else f"amp-{args.way}"
        step = make_step(mode, model, x, y, loss, optimizer, args.label_smoothing)
    else:
        step = cpu_step(model, x, y, loss, optimizer, args.label_smoothing)
    wait()
    start = time.perf_counter()
    warm_up(step, model, optimizer, x, y)
    first_flips = torch.rand(len(labels), device=args.device) < 0.5
    augment(images[:8192], first_flips[:8192], args.cutout)
    average = Average(model, args.ema, args.ema_every) if args.ema > 0 else None
    wait()
    warm_up_s = time.perf_counter() - start

    start, done, losses = time.perf_counter(), 0, torch.zeros(total, device=args.device)
    for epoch in range(args.epochs):
        order = torch.randperm(len(labels), device=args.device)
        flips = first_flips ^ (epoch % 2 == 1) if args.flip == "alternating" else torch.rand(len(labels), device=args.device) < 0.5
        data, targets = augment(images[order], flips[order], args.cutout), labels[order]
        for i in range(per_epoch):
            x.copy_(data[i * args.batch:(i + 1) * args.batch])
            y.copy_(targets[i * args.batch:(i + 1) * args.batch])
            for group, lr, scale in zip(optimizer.param_groups, lrs, scales):
                torch.mul(rates[done], scale, out=lr)
                if not cuda:
                    group["lr"] = lr.item()
            step()
            losses[done].copy_(loss)
            done += 1
            if average:
                average.update(done)
    wait()
    end = time.perf_counter()

    result = {"framework": "pytorch", "way": args.way, "recipe": args.recipe, "seed": args.seed, "epochs": args.epochs,
              "train_s": end - start, "warm_up_s": warm_up_s, "total_s": end - begin,
              "last_loss": losses[-per_epoch:].mean().item()}
    for name, network in (("test", model), ("test_ema", average and average.model)):
        if network:
            plain, mirrored = accuracies(network, test_images, test_labels, cuda)
            result.update({f"{name}_accuracy": plain, f"{name}_tta_accuracy": mirrored})
    return {**result, "torch": torch.__version__, "device": torch.cuda.get_device_name() if cuda else "cpu"}


if __name__ == "__main__":
    print(json.dumps(run(arguments())))
