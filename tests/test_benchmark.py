"""The benchmark's results, tables and plots: `python3 tests/test_benchmark.py [build folder]`.

With a build folder, instead, the driver itself runs at a small size on the CPU: results, a failing batch size, resuming.
"""
import contextlib
import importlib.util
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

BENCH = pathlib.Path(__file__).resolve().parent.parent / "bench"
sys.path.insert(0, str(BENCH))
import benchmark_results  # noqa: E402
import benchmark_tables  # noqa: E402
import run_benchmark  # noqa: E402

BUILD = None


def repeat(framework, method, batch, number, step_ms, accuracy):
    result = {"framework": framework, "method": method, "batch": batch, "number": number, "status": "ok",
              "train_s": step_ms / 8, "warm_up_s": 0.1, "step_ms": step_ms, "peak_mib": 100.0, "driver_mib": 700.0,
              "test_accuracy": accuracy}
    benchmark_results.derive(result, 100, 1.0, {method: 500.0})
    return result


DOCUMENT = {"repeats": [
    repeat("halftone", "fp32", 128, 0, 10, 40), repeat("halftone", "fp32", 128, 1, 14, 44),
    repeat("halftone", "amp", 128, 0, 4, 41), repeat("halftone", "amp", 128, 1, 4, 45),
    repeat("halftone", "amp", 256, 0, 5, 30), repeat("halftone", "fp32", 256, 0, 20, 50),
    repeat("pytorch", "amp", 128, 0, 8, 43), repeat("pytorch", "amp", 128, 1, 10, 43),
    {"framework": "pytorch", "method": "fp32", "batch": 256, "number": 0, "status": "failed", "error": "out of memory"}]}


def python_with_matplotlib():
    if importlib.util.find_spec("matplotlib"):
        return sys.executable
    system = "/usr/bin/python3"  # Debian's package is this one's
    found = pathlib.Path(system).exists() and subprocess.run([system, "-c", "import matplotlib"], capture_output=True)
    return system if found and found.returncode == 0 else None


class Results(unittest.TestCase):
    def test_arithmetic_of_the_network(self):
        # By hand: 332,111,872 multiplications forward, of which the first layer's 1,769,472 need no dx.
        self.assertEqual(benchmark_results.flop_per_image(), 2 * (3 * 332_111_872 - 1_769_472))

    def test_what_a_repeat_implies(self):
        r = repeat("halftone", "amp", 128, 0, 4, 41)
        self.assertAlmostEqual(r["images_per_s"], 32000)
        self.assertAlmostEqual(r["tflops"], 32000 * benchmark_results.flop_per_image() / 1e12)
        self.assertAlmostEqual(r["gemm_share"], 100 * r["tflops"] / 500)
        self.assertAlmostEqual(r["steady_s"], 0.4)

    def test_mean_and_std(self):
        cells = benchmark_results.summarize(DOCUMENT)
        stat = cells["halftone", "fp32", 128]["step_ms"]
        self.assertEqual((stat.mean, stat.std, stat.values), (12, 2, [10, 14]))
        self.assertEqual(cells["pytorch", "fp32", 256], {})

    def test_published_figures(self):
        gpus = benchmark_results.published()
        self.assertEqual(sorted(gpus), ["GTX 1080 Ti", "GTX TITAN X", "Tesla V100"])
        for cells in gpus.values():
            self.assertEqual(len(cells), 15)
            self.assertTrue(all(set(cell) == {"test_accuracy", "train_s", "driver_mib"} for cell in cells.values()))
        v100 = gpus["Tesla V100"]["article", "amp", 2048]
        self.assertEqual([v100[m].mean for m in ("test_accuracy", "train_s", "driver_mib")], [61.67, 45.68, 5424.0])
        self.assertEqual(v100["train_s"].std, 3.77)

    def test_files_appear_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "gpu.json"
            benchmark_results.save(path, DOCUMENT)
            self.assertEqual([p.name for p in pathlib.Path(folder).iterdir()], ["gpu.json"])
            self.assertEqual(benchmark_results.load(path), DOCUMENT)


class Tables(unittest.TestCase):
    def test_rows(self):
        text = benchmark_tables.report({"H": benchmark_results.summarize(DOCUMENT)}, benchmark_results.published())
        for row in ("| GPU | framework | method | 128 | 256 |",
                    "| H | halftone | fp32 | 12.00 ± 2.00 | 20.00 ± 0.00 |",
                    "| H | pytorch | fp32 | - | failed |",
                    "| H | halftone | amp over fp32 | 3.00 (2.50-3.50) | 4.00 |",
                    "| H | pytorch | amp | 2.25 (2.00-2.50) | - |",
                    "| H | halftone | amp | +1.00 within | -20.00 OUTSIDE |",
                    "| H | Tesla V100 | amp | 8.54 | 11.49 |"):
            self.assertIn(row, text.splitlines())
        self.assertNotIn("Training loss", text)  # there is none


class Plots(unittest.TestCase):
    def plot(self, folder, *arguments):
        python = python_with_matplotlib()
        if not python:
            self.skipTest("no Python here has matplotlib")
        (folder / "H200.json").write_text(json.dumps(DOCUMENT), encoding="utf-8")
        command = [python, BENCH / "make_plot.py", "--results", folder, *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    def test_figures(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            done = self.plot(folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            figures = [f"{f}.png" for f in ("accuracy", "images_per_s", "memory", "memory_tensors", "step", "time")]
            self.assertEqual(sorted(p.name for p in folder.glob("*.png")), figures)
            for figure in figures:
                self.assertEqual((folder / figure).read_bytes()[:8], b"\x89PNG\r\n\x1a\n")

    def test_the_articles_flags(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            done = self.plot(folder, "--GPU", "H200", "Tesla V100", "--method", "FP32", "FP16", "amp", "--batch", "128",
                             "256", "--plot_std", "--out", folder / "plots")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("| Tesla V100 | article | fp16 | 3.28 ± 0.52 | 5.95 ± 1.03 |", done.stdout)
            self.assertIn("| GPU | framework | method | 128 | 256 |", done.stdout)
            self.assertTrue((folder / "plots" / "time_std.png").exists())

    def test_unknown_names(self):
        with tempfile.TemporaryDirectory() as name:
            self.assertIn("GPU 'B': no file", self.plot(pathlib.Path(name), "--GPU", "B").stderr)
            self.assertIn("--method fp64: unknown", self.plot(pathlib.Path(name), "--method", "FP64").stderr)
            self.assertIn("nothing to show", self.plot(pathlib.Path(name), "--batch", "7").stderr)


class Driver(unittest.TestCase):
    def run_driver(self, *arguments):
        argv, sys.argv = sys.argv, ["run_benchmark", "--build", BUILD, "--device", "cpu", "--width", "0.125",
                                    "--train-images", "64", "--test-images", "32", "--gemm", "32", *arguments]
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out):
                return run_benchmark.main(), out.getvalue()
        finally:
            sys.argv = argv

    def test_smoke(self):
        if not BUILD:
            self.skipTest("no build folder given")
        with tempfile.TemporaryDirectory() as folder:
            here = ["--out", folder, "--gpu-name", "small", "--iterations", "6"]
            code, out = self.run_driver(*here, "--batches", "16", "128", "--repeats", "2")
            self.assertEqual(code, 1, out)  # 128 is larger than the set
            document = benchmark_results.load(pathlib.Path(folder) / "small.json")
            self.assertEqual(len(document["repeats"]), 20)
            self.assertEqual(set(document["gemm_tflops"]), set(run_benchmark.METHODS))
            good = [r for r in document["repeats"] if r["status"] == "ok"]
            bad = [r for r in document["repeats"] if r["status"] == "failed"]
            self.assertEqual([len(good), len(bad)], [10, 10], out)
            self.assertTrue(all("a batch of 128" in r["error"] for r in bad))
            for r in good:
                self.assertEqual((r["seed"], r["test_images"]), (7, 32))
                self.assertGreater(r["train_s"], r["warm_up_s"])
                self.assertGreater(r["peak_mib"], 1)
                self.assertTrue(0 <= r["test_accuracy"] <= 100)
                self.assertTrue(1.5 < r["train_loss"] < 4, r)  # ten classes: about 2.3
            fp32 = [r for r in good if r["method"] == "fp32"]
            self.assertNotEqual(fp32[0]["train_loss"], fp32[1]["train_loss"])  # another network a repeat
            same = {m: [r["train_loss"] for r in good if r["method"] == m] for m in ("fp32", "tf32")}
            self.assertEqual(same["fp32"], same["tf32"])  # on the CPU TF32 is FP32: the same seeds, the same run

            code, out = self.run_driver(*here, "--batches", "16", "--repeats", "2")
            self.assertEqual(code, 0)
            self.assertIn("10 repeats are in", out)
            with self.assertRaises(SystemExit) as e:
                self.run_driver("--out", folder, "--gpu-name", "small", "--iterations", "7")
            self.assertIn("holds results of other settings", str(e.exception))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        BUILD = sys.argv.pop()
        sys.argv.append("Driver")
    unittest.main()
