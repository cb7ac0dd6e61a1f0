"""Keeps the pages true to the tree: `python3 tests/check_docs.py [root]`.

In every Markdown file, a code block under `<!-- from PATH -->` must stand in that file word for word, relative links must lead
somewhere, and a name in backticks that looks like a path of this repository must exist. Prints each offence and exits 1
if there is one.
"""

import pathlib
import re
import sys

ROOMS = "core|autograd|ops|optim|data|dist|amp|models|tests|bench|examples|docs|scripts|cmake|\\.ci"
LISTING = re.compile(r"<!-- from (\S+) -->\n```\w*\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#]+)")
# Up to the first blank; `ops/<op>.cpp` and `tests/*.py` count as their folder.
PATH = re.compile(rf"`((?:{ROOMS})/(?:[\w./-]*(?![\w./<*-])|))[^`]*`")


def check_page(root, page):
    text = page.read_text(encoding="utf-8")
    where = page.relative_to(root)
    for name, code in LISTING.findall(text):
        source = root / name
        if not source.is_file():
            yield f"{where}: a listing from {name}, which is not there"
        elif code not in source.read_text(encoding="utf-8"):
            yield f"{where}: the listing from {name} differs from it: {code.splitlines()[0]} ..."
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    for link in LINK.findall(text):
        if not (page.parent / link).exists():
            yield f"{where}: the link {link} leads nowhere"
    for name in PATH.findall(text):
        if not (root / name).exists():
            yield f"{where}: `{name}` is not there"


def check(root):
    pages = [p for p in [*root.glob("*.md"), *(root / "docs").rglob("*.md")] if p.is_file()]
    return [offence for page in sorted(pages) for offence in check_page(root, page)]


if __name__ == "__main__":
    problems = check(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve())
    print(*problems, f"{len(problems)} offences", sep="\n")
    sys.exit(1 if problems else 0)
