"""The checks of the tree must be able to fail: each rule is broken once in a scratch tree."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import check_docs
import check_includes
import check_ops


class Tree(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def offences(self):
        return check_includes.check(self.root)[0]


class Includes(Tree):
    def setUp(self):
        super().setUp()
        self.write("core/tensor.h", "#pragma once\n#include <vector>\n")
        self.write("autograd/var.h", '#pragma once\n#include "core/tensor.h"\n')
        self.write("ops/ops.h", '#pragma once\n#include "autograd/var.h"\n')
        self.write("tests/test_x.cpp", '#include <doctest/doctest.h>\n#include "ops/ops.h"\n')

    def test_a_good_tree(self):
        self.assertEqual(self.offences(), [])

    def test_an_arrow_against_the_table(self):
        self.write("autograd/tape.cpp", '#include "core/tensor.h"\n#include "ops/ops.h"\n')
        self.assertEqual(
            self.offences(), ['autograd/tape.cpp:2: autograd/ includes "ops/ops.h", but may include core only'])

    def test_core_includes_nothing(self):
        self.write("core/tensor.cpp", '  #  include "autograd/var.h"\n')
        self.assertIn("may include nothing only", self.offences()[0])

    def test_a_room_without_an_arrow(self):
        self.write("optim/sgd.cpp", '#include "ops/ops.h"\n')
        self.write("data/loader.cpp", '#include "autograd/var.h"\n')
        self.assertEqual(len(self.offences()), 2)

    def test_a_path_that_is_not_from_the_root(self):
        self.write("ops/relu.cpp", '#include "ops.h"\n')
        self.assertIn("name it from the root", self.offences()[0])

    def test_vendor_headers(self):
        self.write("ops/gemm.h", "#pragma once\n#include <Eigen/Core>\n")
        self.write("core/stream.h", "#pragma once\n#include <cuda_runtime.h>\n")
        self.write("core/cuda_context.h", "#pragma once\n#include <cudnn.h>\n")
        self.write("ops/gemm.cpp", "#include <Eigen/Core>\n")
        self.write("ops/gemm.cu", "#include <Eigen/Core>\n")
        self.assertEqual([o.split(":")[0] for o in self.offences()], ["core/stream.h", "ops/gemm.cu", "ops/gemm.h"])

    def test_a_header_without_pragma_once(self):
        self.write("core/bare.h", "\n")
        self.assertEqual(self.offences(), ["core/bare.h: no #pragma once"])


class Ops(Tree):
    def table(self, *names):
        lines = " \\\n".join(f"  X({name})" for name in names)
        self.write("ops/registry.h", f"#define HT_OPS(X) \\\n{lines}\n")

    def op(self, name, file=None):
        self.write(f"ops/{file or name}.cpp", f'const OpInfo {name}_info{{"{name}", AmpTag::leave}};\n')

    def test_agreement(self):
        self.table("add", "relu")
        self.op("add")
        self.op("relu")
        self.write("ops/helper.cpp", "int helper() { return 1; }\n")
        self.assertEqual(list(check_ops.check(self.root)), [])

    def test_an_op_that_is_not_registered(self):
        self.table("add")
        self.op("add")
        self.op("relu")
        self.assertEqual(list(check_ops.check(self.root)), ["ops/relu.cpp: relu is not in the table of ops/registry.h"])

    def test_a_line_without_an_op(self):
        self.table("add", "relu")
        self.op("add")
        self.assertIn("relu has no OpInfo", list(check_ops.check(self.root))[0])

    def test_order_and_place(self):
        self.table("relu", "add")
        self.op("add")
        self.op("relu", file="add_and_relu")
        offences = list(check_ops.check(self.root))
        self.assertTrue(any("alphabetical" in o for o in offences))
        self.assertTrue(any("belongs in ops/relu.cpp" in o for o in offences))


class Docs(Tree):
    def setUp(self):
        super().setUp()
        self.write("ops/relu.cpp", "int relu();\nint more();\n")

    def test_a_true_page(self):
        self.write("docs/page.md", "[up](../README.md) and [out](https://example.org)\n")
        self.write(
            "README.md", "See `ops/relu.cpp`, `ops/<op>.cpp`, `ops/*.cpp` and [a page](docs/page.md#part).\n"
            "<!-- from ops/relu.cpp -->\n```cpp\nint relu();\n```\n```\nbuild [x](y) `ops/none.cpp`\n```\n")
        self.assertEqual(check_docs.check(self.root), [])

    def test_a_listing_that_drifted(self):
        self.write("README.md", "<!-- from ops/relu.cpp -->\n```cpp\nint relu(int);\n```\n")
        self.assertIn("differs", check_docs.check(self.root)[0])

    def test_names_of_what_is_not_there(self):
        self.write("README.md", "[page](docs/none.md), `ops/none.cpp`, `scripts/none.sh --help`\n")
        self.assertEqual(len(check_docs.check(self.root)), 3)


if __name__ == "__main__":
    unittest.main()
