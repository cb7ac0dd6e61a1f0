"""Enforces who may include whom (docs/design.md): `python3 tests/check_includes.py [root]`.

Every quoted #include names a file from the repository's root, in a room that the including file may see. Vendor headers
stay out of public headers, and Eigen out of device code. Prints each offence and exits 1 if there is one.
"""

import pathlib
import re
import sys

MAY_INCLUDE = {
    "core": set(),
    "autograd": {"core"},
    "ops": {"core", "autograd"},
    "optim": {"core", "autograd"},
    "data": {"core"},
    "dist": {"core", "autograd"},
    "amp": {"core", "autograd", "ops", "optim"},
    "models": {"core", "autograd", "ops", "optim", "data", "dist", "amp"},
}
MAY_INCLUDE["bench"] = MAY_INCLUDE["examples"] = set(MAY_INCLUDE) | {"models"}
MAY_INCLUDE["tests"] = set(MAY_INCLUDE)
for room in ("models", "bench", "examples", "tests"):  # they see everything, so also the header that includes it
    MAY_INCLUDE[room] = MAY_INCLUDE[room] | {"halftone.h"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]', re.MULTILINE)
VENDOR = re.compile(r"^(Eigen/|unsupported/|CLI/|nlohmann/|doctest/|torch/|mpi\.h|nccl|png\.h|jpeglib\.h|cu(da|dnn|blas|rand)|nvrtc|nvToolsExt|nvtx3)")
EIGEN = re.compile(r"^(Eigen|unsupported)/")
# Headers that are not installed (cmake/HalftoneInstall.cmake) may name CUDA's types; CPU builds never open them.
PRIVATE_HEADER = re.compile(r"^((cuda|cudnn|cublas|cublaslt|nccl)_.*\.h|.*\.cuh)$")


def check_file(root, path):
    where = path.relative_to(root)
    room = where.parts[0]
    text = path.read_text(encoding="utf-8")
    header = path.suffix in (".h", ".cuh")
    if header and "#pragma once" not in text:
        yield f"{where}: no #pragma once"
    for match in INCLUDE.finditer(text):
        quote, name = match.groups()
        line = f"{where}:{text.count(chr(10), 0, match.start(2)) + 1}"
        if quote == '"':
            target = name.split("/")[0]
            known = (root / name).is_file() or PRIVATE_HEADER.match(name.split("/")[-1])
            if not known:
                yield f'{line}: "{name}" is not a file of this repository; name it from the root, or use <...>'
            elif target != room and target not in MAY_INCLUDE[room]:
                allowed = ", ".join(sorted(MAY_INCLUDE[room])) or "nothing"
                yield f'{line}: {room}/ includes "{name}", but may include {allowed} only'
        elif path.suffix == ".h" and VENDOR.match(name) and not PRIVATE_HEADER.match(path.name):
            yield f"{line}: <{name}> in a public header; move it to the .cpp file"
        elif path.suffix in (".cu", ".cuh") and EIGEN.match(name):
            yield f"{line}: <{name}> in device code; Eigen stays in .cpp files"


def check(root):
    offences, count = [], 0
    for room in MAY_INCLUDE:
        for path in sorted((root / room).rglob("*")):
            if path.suffix in (".h", ".cuh", ".cpp", ".cu") and "consumer" not in path.parts:
                count += 1
                offences += check_file(root, path)
    return offences, count


if __name__ == "__main__":
    tree = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    problems, files = check(tree)
    print(*problems, f"{files} files, {len(problems)} offences", sep="\n")
    sys.exit(1 if problems or not files else 0)
