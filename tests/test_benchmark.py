"""The benchmark's results, tables and plots: `python3 tests/test_benchmark.py [build folder]`.

With a build folder, instead, the driver itself runs at a small size on the CPU: results, a failing batch size, resuming.
"""
import contextlib
import importlib.util
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BENCH = pathlib.Path(__file__).resolve().parent.parent / "bench"
sys.path.insert(0, str(BENCH))
import benchmark_results  # noqa: E402
import benchmark_tables  # noqa: E402
import recipe_accuracy  # noqa: E402
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


class RecipeAccuracy(unittest.TestCase):
    def test_table_of_seeds_means_and_ratio(self):
        def run(accuracy, train_s):
            return {"test_accuracy": accuracy, "test_ema_accuracy": accuracy + 0.01, "test_ema_tta_accuracy": None,
                    "train_s": train_s, "warm_up_s": 1.5, "process_s": 9}

        text = recipe_accuracy.report({"halftone": [run(0.88, 5), run(0.90, 7)], "pytorch-graph": [run(0.87, 10)]})
        self.assertIn("| halftone | 1 | 90.00 | 91.00 | - | 7.00 | 1.50 | 9.00 |", text)
        self.assertIn("| halftone | mean | 89.00 ± 1.41 | 90.00 ± 1.41 | - | 6.00 ± 1.41 | 1.50 ± 0.00 | 9.00 ± 0.00 |", text)
        self.assertIn("beside pytorch-graph: points of accuracy: test +2.00, averaged +2.00", text)
        self.assertIn("training time 0.600 of it", text)


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


FAKE = """#!/usr/bin/env python3
import json, os, pathlib, sys
gpu = ["gpu " + os.environ["CUDA_VISIBLE_DEVICES"]] if "CUDA_VISIBLE_DEVICES" in os.environ else []
with pathlib.Path(__file__).with_name("log").open("a") as log:
    log.write(" ".join(gpu + sys.argv[1:]) + "\\n")
if "--wait" in sys.argv and sys.stdin.readline() != "go\\n":
    sys.exit("not told to go")
if "hardware" in sys.argv:
    print(json.dumps({"device": "cuda:0", "gpu": "Fake GPU", "gemm_n": 8192, "gemm_tflops": {"amp": 700.0}}))
else:
    print("a line before")
    first = sys.argv.index("--number") + 1
    for number in sys.argv[first:sys.argv.index("--iterations")]:
        if "--mode" in sys.argv and number == "1":
            sys.exit("torch.OutOfMemoryError: CUDA out of memory")
        print(json.dumps({"train_s": 1.5, "warm_up_s": 0.5, "step_ms": 2.0, "test_accuracy": 50.0, "test_loss": float("nan")}))
"""


def drive(build, *arguments):
    """The driver's exit code and what it prints."""
    argv, sys.argv = sys.argv, ["run_benchmark", "--build", str(build), "--gpu-name", "small", *map(str, arguments)]
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            return run_benchmark.main(), out.getvalue()
    finally:
        sys.argv = argv


class Order(unittest.TestCase):
    """Both sides are a program that measures nothing and writes down how it was called."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.program = self.folder / "bin" / "bench_benchmark"
        self.program.parent.mkdir()
        visible = os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # what the driver sets is looked at
        if visible is not None:
            self.addCleanup(os.environ.__setitem__, "CUDA_VISIBLE_DEVICES", visible)
        self.program.write_text(FAKE, encoding="utf-8")
        self.program.chmod(0o755)
        (self.folder / "test_batch.bin").write_bytes(b"images")

    def run_it(self, *more):
        code, out = drive(self.folder, "--data", self.folder, "--out", self.folder, "--python", self.program, "--frameworks",
                          "halftone", "pytorch-graph", "--methods", "amp", "--batches", "128", "--repeats", "2", *more)
        calls = self.program.with_name("log").read_text(encoding="utf-8").splitlines()
        self.program.with_name("log").unlink()
        return code, out, [" ".join(w for w in call.split() if "/" not in w) for call in calls]

    def test_turns_failures_and_going_on(self):
        code, out, calls = self.run_it()
        self.assertEqual(code, 1)
        ours = "repeat --method amp --batch 128 --number {} --iterations {} --data --width 1.0 --train-images 8000 --test-images 2000"
        theirs = "--mode amp-graph --batch 128 --number {} --iterations 100 --data"
        self.assertEqual(calls, ["hardware --gemm -1", ours.format(0, 5), ours.format(0, 100), theirs.format(0),
                                 ours.format(1, 100), theirs.format(1)])
        self.assertIn("FAILED: exit code 1: torch.OutOfMemoryError: CUDA out of memory", out)
        document = benchmark_results.load(self.folder / "small.json")
        self.assertEqual([r["status"] for r in document["repeats"]], ["ok", "ok", "ok", "failed"])
        self.assertEqual(document["first_run_s"], {"amp 128": 1.5})
        self.assertIn("21b2eed1e328a2c6", document["settings"]["data"])
        first = document["repeats"][0]
        self.assertEqual((first["images_per_s"], first["steady_s"], first["test_loss"]), (64000, 1.0, None))

        self.assertEqual(self.run_it()[2], ["hardware --gemm -1", theirs.format(1)])  # only what failed
        self.assertEqual(len(benchmark_results.load(self.folder / "small.json")["repeats"]), 4)

    def test_together(self):
        code, out, calls = self.run_it("--together", "--repeats", "3")
        self.assertEqual([call.split("--number ")[1].split(" --")[0] for call in calls[2:]], ["0", "0 1 2", "1", "2"])
        document = benchmark_results.load(self.folder / "small.json")
        theirs = {r["number"]: r["status"] for r in document["repeats"] if r["framework"] == "pytorch-graph"}
        self.assertEqual(theirs, {0: "ok", 1: "failed", 2: "failed"})  # what was measured before the end counts
        self.assertEqual(self.run_it("--together", "--repeats", "3")[2][-1].split("--number ")[1].split(" --")[0], "1 2")

    def test_ahead(self):
        code, out, calls = self.run_it("--together", "--ahead", "--repeats", "1", "--batches", "128", "256", "512")
        self.assertEqual(code, 0, out)
        theirs = [call for call in calls if "--mode" in call]
        self.assertEqual([call.split("--batch ")[1].split()[0] for call in theirs], ["128", "256", "512"])
        self.assertTrue(all(call.endswith("--wait") for call in theirs))
        self.assertEqual({r["status"] for r in benchmark_results.load(self.folder / "small.json")["repeats"]}, {"ok"})
        (self.folder / "small.json").unlink()
        code, out, calls = self.run_it("--ahead", "--repeats", "1", "--python", self.folder / "nowhere")
        self.assertEqual(code, 1)  # recorded as theirs, and ours is there
        self.assertEqual([r["status"] for r in benchmark_results.load(self.folder / "small.json")["repeats"]], ["ok", "failed"])
        self.assertIn("pytorch-graph amp batch 128 repeat 1: FAILED: [Errno 2]", out)
        with contextlib.redirect_stderr(io.StringIO()) as told, self.assertRaises(SystemExit):
            self.run_it("--ahead", "--jobs", "2")
        self.assertIn("--ahead is for times", told.getvalue())

    def test_a_repeat_that_takes_too_long(self):
        self.program.write_text(FAKE + "    sys.stdout.flush()\n    import time; time.sleep(60)\n", encoding="utf-8")
        code, out, calls = self.run_it("--timeout", "1", "--repeats", "1", "--frameworks", "halftone")
        self.assertEqual(code, 0, out)  # what it had measured by then counts
        self.program.write_text(FAKE.replace('print("a line before")', "import time; time.sleep(60)"), encoding="utf-8")
        (self.folder / "small.json").unlink()
        code, out, calls = self.run_it("--timeout", "1", "--repeats", "1", "--frameworks", "halftone")
        self.assertEqual(code, 1)
        self.assertIn("FAILED: not done after 1 s", out)

    def test_two_gpus(self):
        with contextlib.redirect_stderr(io.StringIO()) as told, self.assertRaises(SystemExit):
            self.run_it("--gpus", "1", "1")
        self.assertIn("--gpus 1 1 names a GPU twice", told.getvalue())
        code, out, calls = self.run_it("--gpus", "3", "5", "--batches", "128", "256", "512", "--repeats", "1", "--frameworks",
                                       "halftone")
        self.assertEqual(code, 0, out)
        self.assertTrue(calls[0].startswith("gpu 3 hardware"))
        where = {(call.split(" --batch ")[1].split()[0], call.split()[1]) for call in calls[1:]}
        self.assertEqual(where, {("512", "3"), ("256", "5"), ("128", "5")})  # plans and repeats
        repeats = benchmark_results.load(self.folder / "small.json")["repeats"]
        self.assertEqual({r["batch"]: r["gpu_number"] for r in repeats}, {512: 3, 256: 5, 128: 5})

    def test_what_it_refuses(self):
        self.run_it()
        with self.assertRaises(SystemExit) as e:
            self.run_it("--iterations", "7")
        self.assertIn("holds results of other settings", str(e.exception))
        self.program.write_text(FAKE.replace("Fake GPU", "Other GPU"), encoding="utf-8")
        with self.assertRaises(SystemExit) as e:
            self.run_it()
        self.assertIn("holds results of Fake GPU, but this is Other GPU", str(e.exception))
        with self.assertRaises(SystemExit) as e:
            drive(self.folder / "nowhere")
        self.assertIn("bench_benchmark is missing", str(e.exception))


class Driver(unittest.TestCase):
    def run_driver(self, *arguments):
        return drive(BUILD, "--device", "cpu", "--width", "0.125", "--train-images", "64", "--test-images", "32", "--gemm", "32",
                     *arguments)

    def test_smoke(self):
        if not BUILD:
            self.skipTest("no build folder given")
        with tempfile.TemporaryDirectory() as folder:
            here = ["--out", folder, "--iterations", "6"]
            code, out = self.run_driver(*here, "--batches", "16", "128", "--repeats", "2")
            self.assertEqual(code, 1, out)  # 128 is larger than the set
            document = benchmark_results.load(pathlib.Path(folder) / "small.json")
            self.assertEqual(len(document["repeats"]), 20)
            self.assertEqual(set(document["gemm_tflops"]), {*run_benchmark.METHODS, "o2"})
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


if __name__ == "__main__":
    if len(sys.argv) > 1:
        BUILD = sys.argv.pop()
        sys.argv.append("Driver")
    unittest.main()
