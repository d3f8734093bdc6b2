"""`doctor`: what it finds here, and that each complaint comes with its remedy and the right exit code."""
import json
import os
import subprocess
import unittest
from unittest import mock

from program import Folder, command, run


class Doctor(Folder):
    def findings(self, *options, ranks=None, code=0):
        done = run("doctor", "--json", *options, ranks=ranks)
        self.assertEqual(done.code, code, done)
        report = json.loads(done.out)
        self.assertEqual(report["failures"], sum(f["health"] == "FAIL" for f in report["findings"]))
        for f in report["findings"]:
            self.assertEqual(f["remedy"] == "", f["health"] == "ok", f)
        return {f["what"]: f for f in report["findings"]}

    def test_a_healthy_machine(self):
        for ranks in (None, 2):
            found = self.findings("--dir", self.folder, ranks=ranks)
            for what in ("ranks", "versions", "cores", "shared memory", "GPU", "folder", "file locks", "HDF5"):
                self.assertIn(what, found)
            self.assertEqual(found["folder"]["ranks"], [0])  # one rank of a host writes
            self.assertEqual(found["cores"]["ranks"], list(range(ranks or 1)))
            self.assertRegex(found["folder"]["found"], r"GiB free, \d+ MB/s written and synced")
        self.assertRegex(found["MPI"]["found"], r"GB/s from rank 0 to 1")
        self.assertEqual(self.tree(), [])

    def test_text(self):
        done = run("doctor", "--dir", self.folder / "absent")
        self.assertEqual(done.code, 1, done)
        self.assertRegex(done.out, r"FAIL  folder +\S+absent: not a folder\n +-> make it, or name another with --dir")

    def test_a_folder_that_cannot_be_written(self):
        found = self.findings("--dir", "/proc", ranks=2, code=1)
        self.assertIn("/proc: cannot write there", found["folder"]["found"])
        self.assertNotIn("HDF5", found)

    def test_a_full_disk(self):
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", self.folder], capture_output=True).returncode != 0:
            self.skipTest("needs the right to mount a tmpfs")
        self.addCleanup(subprocess.run, ["umount", "-l", self.folder])
        found = self.findings("--dir", self.folder, code=1)
        self.assertIn("No space left on device", found["folder"]["found"])
        self.assertEqual(self.tree(), [])

    def test_variables_that_slow_a_run_down(self):
        with mock.patch.dict(os.environ, {"NCCL_P2P_DISABLE": "1", "CUDA_LAUNCH_BLOCKING": "1"}):
            done = run("doctor", "--dir", self.folder)
        self.assertEqual(done.code, 0, done)  # a warning, not a failure
        self.assertIn("NCCL_P2P_DISABLE=1\n", done.out)
        self.assertIn("CUDA_LAUNCH_BLOCKING=1\n", done.out)

    def test_one_core_for_each_rank(self):
        start = ["mpirun", "-n", "2", "--map-by", ":OVERSUBSCRIBE", "taskset", "-c", "0", *command("doctor", "--json", "--dir", self.folder)]
        done = subprocess.run(start, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done)
        cores, = [f for f in json.loads(done.stdout)["findings"] if f["what"] == "cores"]
        self.assertEqual(cores["health"], "warn")
        self.assertIn("--bind-to none", cores["remedy"])


unittest.main(verbosity=2)
