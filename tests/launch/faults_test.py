"""Ranks that are killed, stopped or aborted, phase by phase. A part of the table; all of it with SLIP_FULL_FAULTS=1."""
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "apps"))
from program import ROOT, Folder, command, run, write_config  # noqa: E402

STEPS, HALF, RANKS = 8, 4, 4
FULL = os.environ.get("SLIP_FULL_FAULTS") == "1"
LIMIT = 30  # seconds from the fault to the last process gone
SETTINGS = {
    "target.path": "data/tiny/target", "drafter.config": "configs/tiny-drafter.json", "data.tokens": "data/tiny/train.h5",
    "data.row_tokens": 288, "data.seed": 3, "train.steps": STEPS, "train.rows_per_step": 4, "train.anchors": 3, "train.lr": 2e-3,
    "train.precision": "fp32", "checkpoint.every_steps": HALF, "checkpoint.keep": 0, "comm.timeout_s": 60,
    "comm.heartbeat_s": 0.5, "comm.dead_after_s": 4, "roles.targets": 2, "roles.drafters": 2}
DRAFTER_0, DRAFTER_1, TARGET = 0, 1, 3  # ranks; rank 0 writes checkpoints and hears the others' heartbeats


class Run(Folder):
    def start(self, fault, *options, **settings):
        """train.steps = 3 is train_steps=3; stderr goes to a file."""
        changed = {k.replace("_", ".", 1): v for k, v in settings.items()}
        self.config = write_config(self.folder / "run.ini", {**SETTINGS, "log.dir": self.folder / "run", **changed})
        self.said = self.folder / "said"
        with open(self.said, "w") as out:
            return subprocess.Popen(command("train", "--device", "cpu", "--config", self.config, *options, ranks=RANKS), cwd=ROOT,
                                    stdout=out, stderr=out, env={**os.environ, **({"SLIP_TEST_FAULT": fault} if fault else {})})

    def processes(self):
        """Of the run with this configuration."""
        found = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it ended meanwhile
                continue
            if words[0].endswith(b"/slipstream") and str(self.config).encode() in words:
                found.append(int(folder.name))
        return found

    def wait_for(self, text, job, seconds=60):
        end = time.monotonic() + seconds
        while text not in self.said.read_text():
            self.assertIsNone(job.poll(), self.said.read_text())
            self.assertLess(time.monotonic(), end, self.said.read_text())
            time.sleep(0.01)

    def metrics(self):
        return [json.loads(line) for line in (self.folder / "run/metrics.jsonl").read_text().splitlines()]

    def resume(self, *options, code=0):
        done = run("train", "--device", "cpu", "--config", self.config, "--resume", "auto", *options, ranks=RANKS)
        self.assertEqual(done.code, code, done)
        return done


class Faults(Run):
    def check(self, phase, step, rank, action, **settings):
        with self.subTest(f"{action} of rank {rank} at step {step} in {phase}"):
            self.doCleanups()
            self.setUp()
            job = self.start(f"{phase}:{step}:{rank}:{action}", **settings)
            self.wait_for("test fault", job)
            began = time.monotonic()
            code = job.wait(timeout=LIMIT)
            while self.processes():
                self.assertLess(time.monotonic() - began, LIMIT, "processes are left")
                time.sleep(0.02)
            took = time.monotonic() - began
            said = self.said.read_text()
            self.assertEqual(code, 4, said)
            lines = [line for line in said.splitlines() if re.search(r"^slipstream.*(is gone|makes no progress|error)", line)]
            self.assertEqual(len(lines), 1, said)
            self.assertIn(f"rank {rank} on {socket.gethostname()} ", lines[0])
            self.assertIn(f"at step {step} in phase {phase}", lines[0])
            self.resume()
            self.assertEqual([m["step"] for m in self.metrics()], list(range(1, STEPS + 1)))
            print(f"{action:6} rank {rank} step {step} {phase:9} all gone after {took:.1f} s", flush=True)

    def test_killed(self):
        self.check("reduce", 6, DRAFTER_1, "kill")
        self.check("save", HALF, DRAFTER_0, "kill")

    def test_stopped(self):
        self.check("capture", 6, TARGET, "stop")
        self.check("exit", STEPS, DRAFTER_0, "stop")

    def test_aborted(self):
        self.check("transfer", 6, TARGET, "abort")
        self.check("load", 0, DRAFTER_0, "abort")

    @unittest.skipUnless(FULL, "SLIP_FULL_FAULTS=1 runs the whole table")
    def test_every_phase(self):
        places = [("start", 0), ("load", 0), ("transfer", 6), ("save", HALF), ("exit", STEPS)]
        for action in ("kill", "stop", "abort"):
            for phase, step in [("start", 0), ("load", 0), ("capture", 6), ("transfer", 6), ("exit", STEPS)]:
                self.check(phase, step, TARGET, action)
            for rank in (DRAFTER_0, DRAFTER_1):
                for phase, step in [*places, ("train", 6), ("reduce", 6), ("save", STEPS)]:
                    self.check(phase, step, rank, action)
        for rank in (DRAFTER_0, TARGET):  # as users have it
            self.check("transfer", 6, rank, "stop", comm_heartbeat_s=1, comm_dead_after_s=15)
            self.check("transfer", 6, rank, "hang", comm_timeout_s=10)


unittest.main(verbosity=2)
