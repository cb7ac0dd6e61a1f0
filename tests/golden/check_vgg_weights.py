"""Weights to and from PyTorch, where torch and safetensors are installed: `python3 tests/golden/check_vgg_weights.py BUILD`.

Makes PyTorch's VGG16-BN for 32x32 images with kuangliu's head (one Linear) and torchvision's, gives its batch norms
statistics of some use, and saves weights, an input and logits. Halftone's test_weights loads them and compares; then PyTorch
loads the files that Halftone wrote and compares the logits once more. Exits 1 on a difference above 1e-4.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

CHANNELS = [64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M"]


def vgg16_bn(torch, hidden):
    nn = torch.nn
    layers, inputs = [], 3
    for channels in CHANNELS:
        if channels == "M":
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(inputs, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
        inputs = channels
    dense = lambda inputs, outputs: [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout()]
    head = nn.Linear(512, 10)
    if hidden:
        head = nn.Sequential(*dense(512, hidden), *dense(hidden, hidden), nn.Linear(hidden, 10))
    model = nn.Module()
    model.features, model.classifier = nn.Sequential(*layers), head
    model.forward = lambda x: model.classifier(model.features(x).flatten(1))
    return model


def main(build):
    import torch
    from safetensors.torch import load_file, save_file

    torch.manual_seed(1)
    worst = 0.0
    with tempfile.TemporaryDirectory() as top, torch.no_grad():
        models = {}
        for hidden in (0, 4096):
            model = models[hidden] = vgg16_bn(torch, hidden)
            x = torch.randn(8, 3, 32, 32)
            for _ in range(20):  # running statistics that fit, so that the logits are of order 0.1 and more
                model.forward(torch.randn(64, 3, 32, 32))
            model.eval()
            name = f"{top}/head{hidden}"
            save_file({"module." + key: value for key, value in model.state_dict().items()}, name + ".safetensors")
            nhwc = x.permute(0, 2, 3, 1).contiguous()
            save_file({"x_nhwc": nhwc, "x": x, "logits": model.forward(x)}, name + ".io.safetensors")
        test = pathlib.Path(build).resolve() / "test_weights"
        subprocess.run([test, "-tc=PyTorch*", "-s"], env={**os.environ, "HALFTONE_TORCH_VGG": top}, check=True)
        for hidden, model in models.items():
            name = f"{top}/head{hidden}"
            for value in model.state_dict().values():
                value.zero_()
            model.load_state_dict(load_file(name + ".ours.safetensors"))
            logits = model.forward(load_file(name + ".io.safetensors")["x"])
            worst = max(worst, (logits - load_file(name + ".ours-io.safetensors")["logits"]).abs().max().item())
    print(f"our files in PyTorch: largest difference of a logit {worst:.2e}")
    sys.exit(worst > 1e-4)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
