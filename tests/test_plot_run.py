"""scripts/plot_run.py on small logs: `python3 tests/test_plot_run.py`."""
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "scripts" / "plot_run.py"
sys.path.insert(0, str(SCRIPT.parent))
import plot_run  # noqa: E402


def log(scaled):
    scale = {"loss_scale": 1024.0} if scaled else {}
    lines = [{"type": "config"}]
    for step in range(1, 101):
        lines.append({"type": "step", "step": step, "loss": None if step == 7 else 2 / step, "accuracy": step / 200, "lr": 0.1, **scale})
    for step, accuracy in ((50, None), (100, 0.5)):
        lines.append({"type": "epoch", "step": step, "train_accuracy": 0.4, "test_accuracy": accuracy, "test_loss": accuracy,
                      "validation_ema_accuracy": 0.3})
    return "\n".join(map(json.dumps, lines)) + "\n"


class PlotRun(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name) / "run.jsonl"

    def tearDown(self):
        self.folder.cleanup()

    def run_script(self, *args):
        return subprocess.run([sys.executable, str(SCRIPT), *map(str, args)], capture_output=True, text=True)

    def test_reading(self):
        self.path.write_text(log(True) + '{"type": "step", "st')  # killed while it wrote
        steps, epochs = plot_run.read(self.path)
        self.assertEqual((len(steps), len(epochs)), (100, 2))
        self.assertEqual(len(plot_run.series(steps, "loss")[0]), 99)  # without the null
        self.assertEqual(plot_run.series(epochs, "test_accuracy"), ([100], [0.5]))
        self.assertEqual(plot_run.evaluated(epochs, "_accuracy"), ["test", "validation_ema"])
        self.assertEqual(plot_run.smooth([1, 3] * 50)[:3], [1, 2, 2])

    def test_bad_logs(self):
        for text, part in (("", "no step"), ('{"type"\n{}\n', ":1 is not JSON")):
            self.path.write_text(text)
            result = self.run_script(self.path)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(part, result.stderr)
            self.assertNotIn("Traceback", result.stderr)
        result = self.run_script(self.path.with_name("none.jsonl"))
        self.assertIn("No such file", result.stderr)

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"), "no matplotlib")
    def test_drawing(self):
        for scaled in (False, True):
            self.path.write_text(log(scaled))
            result = self.run_script(self.path)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertTrue(self.path.with_suffix(".png").read_bytes().startswith(b"\x89PNG"))
        out = self.path.with_name("a.svg")
        self.assertEqual(self.run_script(self.path, "--out", out).returncode, 0)
        self.assertIn("loss scale", out.read_text())


if __name__ == "__main__":
    unittest.main()
