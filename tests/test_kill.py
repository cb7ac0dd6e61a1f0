"""Kills train_vgg16 with SIGKILL at random moments and resumes it: `python3 tests/test_kill.py BUILD [KILLS] [SEED] [DEVICE]`.

Every run, however often it was killed, must end with the very bytes of a run that was left alone, and no file that bears
a checkpoint's name may ever be broken. Exits 1 where that fails.
"""

import pathlib
import random
import subprocess
import sys
import tempfile
import time

FLAGS = "--threads 1 --width 0.05 -b 8 --limit 64 --iterations 24 --augment full --amp O1 --eval 0 -q".split()
LAST = "step-000000024.safetensors"


def start(build, device, folder):
    on_device = ["--device", device] if device == "cpu" else ["--device", device, "--deterministic"]
    command = [build / "bin/train_vgg16", *FLAGS, *on_device, "--save", folder, "--save-every", "1", "--resume", folder]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    out, err = process.communicate()
    if process.returncode != 0 or err:  # a checkpoint that was skipped as damaged is told on stderr
        sys.exit(f"exit code {process.returncode}\n{out}\n{err}")
    return out


def main(build, kills=10, seed=1, device="cpu"):
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as top:
        begin = time.monotonic()
        reference = pathlib.Path(top) / "reference"
        reference.mkdir()
        finish(start(build, device, reference))
        duration = time.monotonic() - begin
        wanted = (reference / LAST).read_bytes()

        done = runs = resumed = 0
        while done < kills:
            folder = pathlib.Path(top) / f"run{runs}"
            folder.mkdir()
            for _ in range(chance.randint(1, 6)):
                process = start(build, device, folder)
                time.sleep(chance.uniform(0, duration))
                if process.poll() is None:
                    process.kill()
                    done += 1
                    _, err = process.communicate()
                    if err:
                        sys.exit(f"before a kill: {err}")
                else:
                    finish(process)
            resumed += "resumed from" in finish(start(build, device, folder))
            names = sorted(path.name for path in folder.iterdir())
            if len(names) != 2 or (folder / LAST).read_bytes() != wanted:
                sys.exit(f"run {runs}: {names}; the last one differs from the run that was left alone")
            runs += 1
    if kills and not resumed:
        sys.exit("no run was resumed from a checkpoint: the kills came too early to test anything")
    print(f"{done} kills in {runs} runs, {resumed} resumed from a checkpoint: all ended with the same bytes")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), *(int(text) for text in sys.argv[2:4]), *sys.argv[4:5])
