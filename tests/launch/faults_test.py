"""Ranks that are killed, stopped or aborted, phase by phase; saves that fail; signals. A part of the cases: all of them with
SLIP_FULL_FAULTS=1."""
import hashlib
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "apps"))
from program import BUILD, DEVICE, ROOT, Folder, command, run, write_config  # noqa: E402

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
    def start(self, fault, *options, command_name="train", ranks=RANKS, environment={}, **settings):
        """train.steps = 3 is train_steps=3; stderr goes to a file."""
        changed = {k.replace("_", ".", 1): v for k, v in settings.items()}
        self.config = write_config(self.folder / "run.ini", {**SETTINGS, "log.dir": self.folder / "run", **changed})
        self.said = self.folder / "said"
        line = command(command_name, "--device", DEVICE, "--config", self.config, *options, ranks=ranks)
        with open(self.said, "w") as out:
            return subprocess.Popen(line, cwd=ROOT, stdout=out, stderr=out, env={**os.environ, **environment, **({"SLIP_TEST_FAULT": fault} if fault else {})})

    def checkpoint(self, step):
        return self.folder / "run/checkpoints" / f"step-{step:08}"

    def state(self, step):
        """Hashes of what a checkpoint holds."""
        return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(self.checkpoint(step).rglob("*")) if f.is_file()}

    def weights(self, step):
        """The same without the settings."""
        return {name: h for name, h in self.state(step).items() if name.endswith(".safetensors")}

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

    def resume(self, *options, ranks=RANKS, code=0):
        done = run("train", "--device", DEVICE, "--config", self.config, "--resume", "auto", *options, ranks=ranks)
        self.assertEqual(done.code, code, done)
        return done


class Faults(Run):
    def check(self, phase, step, rank, action, command_name="train", **settings):  # command_name: train or dump
        with self.subTest(f"{action} of rank {rank} of {command_name} at step {step} in {phase}"):
            self.doCleanups()
            self.setUp()
            if command_name == "dump":
                settings = {"dump_dir": self.folder / "dump", "dump_shard_bytes": 1000000, "data_tokens": "data/tiny/heldout.h5"}
            job = self.start(f"{phase}:{step}:{rank}:{action}", command_name=command_name, **settings)
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
            self.assertIn(f"at step {step} in phase {phase.split('/')[0]}", lines[0])
            if command_name == "dump":
                done = run("dump", "--device", DEVICE, "--config", self.config, ranks=RANKS)
                self.assertEqual(done.code, 0, done)
                self.assertTrue(json.loads((self.folder / "dump/manifest.json").read_text())["complete"])
            else:
                self.resume()
                self.assertEqual([m["step"] for m in self.metrics()], list(range(1, STEPS + 1)))
            print(f"{action:6} rank {rank} of {command_name:5} step {step} {phase:9} all gone after {took:.1f} s", flush=True)

    def test_killed(self):
        self.check("reduce", 6, DRAFTER_1, "kill")
        self.check("save", HALF, DRAFTER_0, "kill")

    def test_stopped(self):
        self.check("capture", 6, TARGET, "stop")
        self.check("exit", STEPS, DRAFTER_0, "stop")

    def test_aborted(self):
        self.check("transfer", 6, TARGET, "abort")
        self.check("load", 0, DRAFTER_0, "abort")

    def test_while_weights_are_read(self):  # drafter 0 reads for drafter 1
        self.check("load/read", 0, DRAFTER_0, "kill")

    def test_dump(self):
        self.check("capture", 5, 1, "kill", command_name="dump")

    def check_all(self, places):
        """Each action at each place; SLIP_FAULTS_PART=2/5: the second fifth of them."""
        part, parts = map(int, os.environ.get("SLIP_FAULTS_PART", "1/1").split("/"))
        cases = [(phase, step, rank, action, *job) for action in ("kill", "stop", "abort") for phase, step, rank, *job in places]
        for case in cases[part - 1::parts]:
            self.check(*case)

    @unittest.skipUnless(FULL, "SLIP_FULL_FAULTS=1 runs the whole table")
    def test_every_phase(self):
        self.check_all([("start", 0, DRAFTER_1), ("load", 0, TARGET), ("capture", 6, TARGET), ("transfer", 6, TARGET), ("train", 6, DRAFTER_1),
                        ("reduce", 6, DRAFTER_1), ("save", HALF, DRAFTER_0), ("exit", STEPS, DRAFTER_1), ("capture", 5, 1, "dump")])

    @unittest.skipUnless(FULL, "SLIP_FULL_FAULTS=1 runs the whole table")
    def test_every_rank(self):
        """The places that test_every_phase leaves out."""
        self.check_all([("start", 0, TARGET), ("exit", STEPS, TARGET), ("save", HALF, DRAFTER_1),
                        *((phase, step, DRAFTER_0) for phase, step in (("start", 0), ("exit", STEPS), ("train", 6), ("reduce", 6))),
                        *((phase, step, rank) for rank in (DRAFTER_0, DRAFTER_1) for phase, step in (("load", 0), ("transfer", 6), ("save", STEPS))),
                        ("start", 0, 2, "dump"), ("load", 0, 1, "dump"), ("capture", 5, 0, "dump")])
        for rank in (DRAFTER_0, TARGET):  # as users have it
            self.check("transfer", 6, rank, "stop", comm_heartbeat_s=1, comm_dead_after_s=15)
            self.check("transfer", 6, rank, "hang", comm_timeout_s=10)


ALONE = {"ranks": None, "roles_targets": "auto", "roles_drafters": "auto"}


class Saving(Run):
    def finish(self, fault, code, *options, **settings):
        job = self.start(fault, *options, **settings)
        self.assertEqual(job.wait(timeout=90), code, self.said.read_text())
        return self.said.read_text()

    def test_killed_between_two_files(self):  # D6
        self.finish(None, 0, **ALONE)
        whole = self.state(STEPS)
        for place in ("drafter", "optimizer", "trainer", "manifest", "rename") if FULL else ("optimizer", "rename"):
            with self.subTest(place):
                shutil.rmtree(self.folder / "run")
                self.finish(f"save/{place}:{STEPS}:0:kill", -signal.SIGKILL, **ALONE)
                before = self.state(HALF)
                done = self.resume(ranks=None)
                if place != "rename":
                    self.assertIn("step-00000008.partial: an unfinished checkpoint, ignored", done.err)
                    self.assertIn("from " + str(self.checkpoint(HALF)), done.err)
                self.assertEqual((self.state(HALF), self.state(STEPS)), (before, whole))
                self.assertEqual(sorted(p.name for p in (self.folder / "run/checkpoints").iterdir()),
                                 ["latest", "step-00000004", "step-00000008"])

    def test_a_file_that_may_not_grow(self):
        self.finish(f"train:{HALF}:0:usr1", 75, **ALONE)
        before = self.state(HALF)
        job = self.start("train:6:0:sleep=2", "--resume", "auto", **ALONE)
        self.wait_for("test fault", job)
        resource.prlimit(job.pid, resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))
        self.assertEqual(job.wait(timeout=60), 1)
        said = self.said.read_text()
        self.assertRegex(said, r"step-00000008\.partial/state/optimizer\.safetensors: writing \d+ bytes: File too large; \d+ bytes are free")
        self.assertEqual(self.state(HALF), before)
        self.assertEqual(sorted(p.name for p in (self.folder / "run/checkpoints").iterdir()), ["latest", "step-00000004"])
        self.resume(ranks=None)
        self.assertTrue((self.checkpoint(STEPS) / "manifest.json").exists())

    def test_tried_again(self):
        job = self.start("train:3:0:sleep=1", checkpoint_retries=9, checkpoint_retry_s=0.2, **ALONE)
        self.wait_for("test fault", job)
        resource.prlimit(job.pid, resource.RLIMIT_FSIZE, (3 << 20, resource.RLIM_INFINITY))
        self.wait_for("File too large", job)
        self.wait_for("again in 0.2 s, checkpoint.retries allows 8 more", job)
        resource.prlimit(job.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        self.assertEqual(job.wait(timeout=60), 0, self.said.read_text())
        for step in (HALF, STEPS):
            self.assertTrue((self.checkpoint(step) / "manifest.json").exists())
        again = self.weights(HALF)
        shutil.rmtree(self.folder / "run")
        self.finish(None, 0, **ALONE)
        self.assertEqual(self.weights(HALF), again)

    def test_beside_training(self):
        """While a file of the first checkpoint is written, the other steps are made, and the checkpoint is that of its step."""
        seen = {}
        for background in (True, False):
            action = "pause" if background else "sleep=2"
            job = self.start(f"save/drafter:{HALF}:0:{action}", checkpoint_background=str(background).lower(), **ALONE)
            self.wait_for("test fault", job)
            end = time.monotonic() + (60 if background else 1)
            while time.monotonic() < end and len(self.metrics()) < STEPS:
                time.sleep(0.05)
            self.assertEqual(len(self.metrics()), STEPS if background else HALF)
            self.assertFalse(self.checkpoint(HALF).exists())
            if background:
                job.send_signal(signal.SIGUSR1)
            self.assertEqual(job.wait(timeout=60), 0, self.said.read_text())
            seen[background] = [self.weights(step) for step in (HALF, STEPS)]
            shutil.rmtree(self.folder / "run")
        self.assertEqual(seen[True], seen[False])

    def test_a_long_one_says_how_far_it_is(self):
        for background in ("true", "false"):  # the last one is waited for in any case
            shutil.rmtree(self.folder / "run", ignore_errors=True)
            said = self.finish(f"save/drafter:{STEPS}:0:sleep=6", 0, checkpoint_background=background, **ALONE)
            self.assertRegex(said, r"saving a checkpoint: \d+ of \d+ MB, \d+ MB/s, left \d+:\d\d")

    def test_a_full_disk(self):
        self.finish(f"train:{HALF}:0:usr1", 75, **ALONE)
        before, checkpoints = self.state(HALF), self.folder / "run/checkpoints"
        small = self.folder / "small"
        small.mkdir()
        size = 3 * sum(f.stat().st_size for f in self.checkpoint(HALF).rglob("*")) // 2
        if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", small], capture_output=True).returncode != 0:
            self.skipTest("needs the right to mount a tmpfs")
        self.addCleanup(subprocess.run, ["umount", "-l", small])
        shutil.copytree(checkpoints, small / "c")
        for ranks in (None, RANKS):
            roles = {} if ranks else {k: v for k, v in ALONE.items() if k != "ranks"}
            said = self.finish(None, 1, "--resume", "auto", ranks=ranks, checkpoint_dir=small / "c", **roles)
            self.assertRegex(said, r"small/c: a checkpoint needs \d+ bytes, \d+ are free; the checkpoints before stay")
            self.assertEqual(len([line for line in said.splitlines() if re.search("^slipstream.*error", line)]), 1, said)
            self.assertEqual(sorted(p.name for p in (small / "c").iterdir()), ["latest", "step-00000004"])
        shutil.rmtree(checkpoints)
        shutil.copytree(small / "c", checkpoints)
        self.assertEqual(self.state(HALF), before)

    def test_which_stay(self):
        self.finish(None, 0, checkpoint_every_steps=1, checkpoint_keep=2, checkpoint_keep_every=3, **ALONE)
        self.assertEqual(sorted(p.name for p in (self.folder / "run/checkpoints").iterdir()),
                         ["latest", "step-00000003", "step-00000006", "step-00000007", "step-00000008"])

    def test_by_the_clock(self):
        self.finish(None, 0, checkpoint_every_steps=0, checkpoint_every_minutes=1e-9, **ALONE)
        self.assertEqual(len(list((self.folder / "run/checkpoints").glob("step-*/manifest.json"))), STEPS)


class Signals(Run):
    def stopped(self, fault, at, **settings):
        """All ranks saved the same step, one of `at`, and the run goes on from there."""
        job = self.start(fault, **settings)
        self.assertEqual(job.wait(timeout=60), 75, self.said.read_text())
        steps = len(self.metrics())
        self.assertIn(steps, at)
        self.assertEqual((self.folder / "run/checkpoints/latest").read_text(), f"step-{steps:08}\n")
        self.assertEqual(len(list(self.checkpoint(steps).rglob("manifest.json"))), 1)
        done = self.resume()
        self.assertIn(f"from {self.checkpoint(steps)}", done.err)
        self.assertEqual([m["step"] for m in self.metrics()], list(range(1, self.last + 1)))

    def test_to_one_rank(self):  # G7
        self.last = 20
        for fault in ("train:7:0:term", "reduce:7:1:usr1", "capture:7:3:term"):
            with self.subTest(fault):
                self.doCleanups()
                self.setUp()
                self.stopped(fault, range(5, 13), train_steps=20)  # a target is a few rows ahead of the drafters

    def test_during_an_evaluation(self):
        self.last = STEPS
        self.stopped("evaluate:0:1:term", (1, 2), eval_tokens="data/tiny/heldout.h5", eval_anchors=1)

    def started_mpirun(self, job):
        try:
            children = pathlib.Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
            return any(pathlib.Path(f"/proc/{c}/comm").read_text() in ("mpirun\n", "prterun\n") for c in children)
        except OSError:  # it ended meanwhile
            return False

    def test_before_mpi_has_started(self):
        preload = {"LD_PRELOAD": BUILD + "/tests/launch/libsignal_before_mpi.so"}
        for ranks, roles in ((None, {k: v for k, v in ALONE.items() if k != "ranks"}), (RANKS, {})):
            with self.subTest(ranks):
                self.doCleanups()
                self.setUp()
                job = self.start(None, ranks=ranks, environment=preload, train_steps=50, **roles)
                self.assertEqual(job.wait(timeout=60), 75, self.said.read_text())
                self.assertIn("signal before MPI", self.said.read_text())
                self.assertEqual(len(self.metrics()), 1)
                self.assertEqual((self.folder / "run/checkpoints/latest").read_text(), "step-00000001\n")

    def test_at_any_instant_of_the_start(self):
        for i in range(40 if FULL else 8):
            self.doCleanups()
            self.setUp()
            job = self.start(None, ranks=2, roles_targets=1, roles_drafters=1, train_steps=5000)
            while not self.started_mpirun(job):
                time.sleep(0.001)
            time.sleep(i * (0.05 if FULL else 0.2))
            job.send_signal(signal.SIGUSR1)
            self.assertEqual(job.wait(timeout=60), 75, f"{i}: {self.said.read_text()}")
            self.assertFalse(self.processes())
            if (self.folder / "run/checkpoints").exists():
                steps = len(self.metrics())
                self.assertEqual((self.folder / "run/checkpoints/latest").read_text(), f"step-{steps:08}\n")

    def test_a_second_one_without_a_launcher(self):
        job = self.start(f"save/optimizer:{HALF}:0:sleep=20", **ALONE)
        self.wait_for("test fault", job)
        for _ in range(2):  # an echo
            job.send_signal(signal.SIGTERM)
        time.sleep(1.2)
        self.assertIsNone(job.poll())
        job.send_signal(signal.SIGINT)
        self.assertEqual(job.wait(timeout=5), -signal.SIGINT)
        self.assertFalse(self.checkpoint(HALF).exists())
        self.resume(ranks=None)

    def test_a_second_one_while_saving(self):
        for second in (signal.SIGUSR1, signal.SIGTERM):
            with self.subTest(second):
                self.doCleanups()
                self.setUp()
                job = self.start(f"save/optimizer:{HALF}:0:sleep=4", train_steps=50)
                self.wait_for("test fault", job)
                job.send_signal(signal.SIGTERM)
                time.sleep(0.5)
                job.send_signal(second)
                code = job.wait(timeout=30)
                self.assertFalse(self.processes())
                if second == signal.SIGUSR1:  # asks for the same once more
                    self.assertEqual(code, 75, self.said.read_text())
                    self.assertTrue((self.checkpoint(HALF) / "manifest.json").exists())
                else:  # ends them at once
                    self.assertNotIn(code, (0, 75))
                    self.assertFalse(self.checkpoint(HALF).exists())
                self.resume()
                self.assertEqual([m["step"] for m in self.metrics()], list(range(1, 51)))


unittest.main(verbosity=2)
