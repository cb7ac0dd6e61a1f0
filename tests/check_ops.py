"""Checks that the table of ops and the files in ops/ agree: `python3 tests/check_ops.py [root]`.

Every X(name) in ops/registry.h has its OpInfo `name_info`, named "name", in ops/name.cpp; every OpInfo defined in ops/ is in the
table; the table is in alphabetical order. Files that define no OpInfo are helpers. Prints each offence and exits 1 if there is one.
"""

import pathlib
import re
import sys

TABLE = re.compile(r"#define HT_OPS\(X\)((?:[^\n]*\\\n)*[^\n]*)")
INFO = re.compile(r'^const\s+OpInfo\s+(\w+)_info\s*[{=(]+\s*(?:\.name\s*=\s*)?"(\w+)"', re.MULTILINE)


def check(root):
    table = TABLE.search((root / "ops/registry.h").read_text(encoding="utf-8"))
    names = re.findall(r"\bX\((\w+)\)", table.group(1)) if table else []
    if not names:
        yield "ops/registry.h: no HT_OPS table"
    if names != sorted(set(names)):
        yield "ops/registry.h: the table is not in alphabetical order, or names an op twice"
    defined = {}
    for path in sorted((root / "ops").glob("*.cpp")):
        for variable, name in INFO.findall(path.read_text(encoding="utf-8")):
            where = f"ops/{path.name}"
            if variable != name:
                yield f'{where}: {variable}_info is named "{name}"'
            if variable != path.stem:
                yield f"{where}: {variable}_info belongs in ops/{variable}.cpp (one op, one place)"
            if variable in defined:
                yield f"{where}: {variable}_info is defined in {defined[variable]} too"
            defined[variable] = where
            if variable not in names:
                yield f"{where}: {variable} is not in the table of ops/registry.h"
    for name in names:
        if name not in defined:
            yield f"ops/registry.h: {name} has no OpInfo {name}_info in ops/{name}.cpp"


if __name__ == "__main__":
    problems = list(check(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)))
    print(*problems, f"{len(problems)} offences", sep="\n")
    sys.exit(1 if problems else 0)
