"""Opens a safetensors file of ours from outside: `python3 tests/golden/read_safetensors.py FILE...`.

Parses the format by hand (so it runs anywhere) and checks its rules; where Python's safetensors and
torch are installed, they must read the same names, shapes and bytes. Prints a line a file and exits 1 on a difference.
"""

import json
import math
import struct
import sys

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "U8": 1, "I32": 4, "I64": 8}


def parse(path):
    """{name: (dtype, shape, bytes)} and the metadata; raises ValueError where the format is broken."""
    with open(path, "rb") as file:
        content = file.read()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    data = content[8 + length :]
    metadata = header.pop("__metadata__", {})
    tensors, at = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        size = SIZES[entry["dtype"]] * math.prod(entry["shape"])
        if begin != at or end != begin + size or (8 + length + begin) % SIZES[entry["dtype"]]:
            raise ValueError(f"{path}: {name} lies at {begin} .. {end}, expected {at} .. {at + size}, aligned")
        tensors[name] = (entry["dtype"], entry["shape"], data[begin:end])
        at = end
    if at != len(data):
        raise ValueError(f"{path}: {len(data) - at} bytes after the last tensor")
    return tensors, metadata


def compare_with_torch(path, tensors, metadata):
    try:
        import torch
        from safetensors import safe_open
    except ImportError:
        return "safetensors or torch is not installed, so read by hand only"
    with safe_open(path, framework="pt") as file:
        if set(file.keys()) != set(tensors) or (file.metadata() or {}) != metadata:
            raise ValueError(f"{path}: safetensors sees other names or metadata")
        for name, (_, shape, raw) in tensors.items():
            tensor = file.get_tensor(name).contiguous()
            seen = bytes(tensor.reshape(-1).view(torch.uint8).tolist()) if tensor.numel() else b""
            if list(tensor.shape) != shape or seen != raw:
                raise ValueError(f"{path}: torch reads {name} otherwise")
    return "safetensors and torch read the same"


if __name__ == "__main__":
    try:
        for name in sys.argv[1:]:
            found, texts = parse(name)
            verdict = compare_with_torch(name, found, texts)
            print(f"{name}: {len(found)} tensors, {len(texts)} metadata texts; {verdict}")
    except (ValueError, KeyError, OSError, struct.error) as error:
        sys.exit(f"{error}")
