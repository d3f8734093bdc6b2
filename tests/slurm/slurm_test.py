"""The batch scripts of slurm/ under a real Slurm: two virtual nodes on this machine, which share its cores. Skipped where the
daemons are not installed; SLIP_REQUIRE_SLURM=1 makes that a failure."""
import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

import cluster

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "apps"))
from program import BUILD, GOLDEN, ROOT, Folder, run, write_config  # noqa: E402

STEPS, STOP = 12, 6
SETTINGS = {
    "target.path": "data/tiny/target", "drafter.config": "configs/tiny-drafter.json", "data.tokens": "data/tiny/train.h5",
    "data.row_tokens": 288, "data.seed": 3, "train.steps": STEPS, "train.rows_per_step": 4, "train.anchors": 3, "train.lr": 2e-3,
    "train.precision": "fp32", "checkpoint.every_steps": 0, "roles.targets": 2, "roles.drafters": 2}
BITS = ["step", "epoch", "rows", "tokens", "labels", "lr", "loss", "accuracy", "acceptance_length", "slot_accuracy", "grad_norm"]
LAUNCHERS, NODES, RANKS = ("srun", "mpirun"), (1, 2), 4


class Slurm(Folder):
    @classmethod
    def setUpClass(cls):
        cls.slurm = cluster.Cluster(2)
        cls.addClassCleanup(cls.slurm.stop)

    def setUp(self):
        """A project root whose logs and runs go away."""
        super().setUp()
        for name in ("slurm", "data", "configs"):
            (self.folder / name).symlink_to(ROOT / name)
        (self.folder / "build/release").mkdir(parents=True)
        (self.folder / "build/release/slipstream").symlink_to(BUILD + "/slipstream")
        self.config = write_config(self.folder / "run.ini", SETTINGS)

    def submit(self, script, *arguments, name="job", nodes=1, launcher="srun", fault=None, options=()):
        """The job's id. As the README calls it, on `nodes` nodes; these tests' machines have less than 8 GPUs and 64 cores a node."""
        environment = {**self.slurm.environment, "LAUNCHER": launcher, **({"SLIP_TEST_FAULT": fault} if fault else {})}
        done = subprocess.run(
            ["sbatch", "--parsable", f"--job-name={name}", f"--nodes={nodes}", f"--ntasks-per-node={RANKS // nodes}",
             f"--gpus-per-node={RANKS // nodes}", "--cpus-per-task=1", *options, f"slurm/{script}.sbatch", *map(str, arguments)],
            cwd=self.folder, env=environment, capture_output=True, text=True, timeout=30)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def log(self, name, job):
        path = self.folder / f"{name}-{job}.log"
        return path.read_text() if path.exists() else ""

    def wait_for_log(self, text, name, job, seconds=30):
        self.slurm.wait_for(lambda: text in self.log(name, job) or self.ended(job), f"'{text}' of {name}", seconds)
        self.assertIn(text, self.log(name, job))

    def ended(self, job):
        return self.slurm.state(job)["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")

    def result(self, folder):
        """What must be equal bit for bit: weights, moments, and the figures of each step."""
        last = folder / f"checkpoints/step-{STEPS:08}"
        metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        files = ("state/optimizer.safetensors", "drafter/model.safetensors")
        return ([hashlib.sha256((last / f).read_bytes()).hexdigest() for f in files],
                [{k: m[k] for k in BITS} for m in metrics])

    def test_stopped_by_the_time_limit_requeued_and_finished(self):
        jobs = {}
        for launcher in LAUNCHERS:
            for nodes in NODES:  # all wait in step 6 until they are told to stop; Slurm looks at limits every 30 s
                name = f"{launcher}{nodes}"
                jobs[name] = self.submit("train", self.config, "--device", "cpu", name=name, nodes=nodes, launcher=launcher,
                                         fault=f"train:{STOP}:0:pause", options=("--time=10", "--signal=B:USR1@60"))
        whole = run("train", "--device", "cpu", "--config", self.config, "--set", f"log.dir={self.folder}/whole", ranks=RANKS)
        self.assertEqual(whole.code, 0, whole)
        want = self.result(self.folder / "whole")
        self.assertEqual([m["step"] for m in want[1]], list(range(1, STEPS + 1)))
        for name, job in jobs.items():
            self.wait_for_log("test fault pause", name, job, 60)
            self.slurm.call("scontrol", "update", f"JobId={job}", "TimeLimit=1")
        for name, job in jobs.items():
            with self.subTest(f"{name}, first round"):
                self.wait_for_log("saved and stopped; back to the queue", name, job, 60)
                self.slurm.wait_for(lambda: self.slurm.state(job)["JobState"] == "PENDING", f"requeued {name}")
                # Slurm waits two minutes; slurmd must have forgotten the first round.
                self.slurm.call("scontrol", "update", f"JobId={job}", "TimeLimit=10", "StartTime=now+3")
        for name, job in jobs.items():
            with self.subTest(name):
                self.slurm.wait_for(lambda: self.ended(job), f"end of {name}", 60)
                said, state = self.log(name, job), self.slurm.state(job)
                self.assertEqual((state["JobState"], state["Restarts"]), ("COMPLETED", "1"), said)
                self.assertIn(f"stopped after step {STOP} of {STEPS}", said)  # both rounds are in one log
                self.assertIn(f"from runs/{name}-{job}/checkpoints/step-{STOP:08}", said)
                folder = self.folder / f"runs/{name}-{job}"
                self.assertEqual(self.result(folder), want)
                self.assertEqual(sorted(p.name for p in (folder / "log").iterdir()), [f"rank-{r:04}.log" for r in range(RANKS)])

    def test_cancelled_jobs_save_and_stay_away(self):
        job = self.submit("train", self.config, "--device", "cpu", name="gone", nodes=2, fault=f"train:{STOP}:0:pause")
        self.wait_for_log("test fault", "gone", job)
        self.slurm.call("scancel", job)
        self.slurm.wait_for(lambda: self.ended(job), "end of a cancelled job")
        self.wait_for_log("cancelled, so not put back into the queue", "gone", job)
        self.assertEqual((self.folder / f"runs/gone-{job}/checkpoints/latest").read_text(), f"step-{STOP:08}\n")
        time.sleep(1)
        self.assertEqual(self.slurm.state(job)["JobState"], "CANCELLED")

    def listens(self, job):
        """Does the batch script of this job catch SIGUSR1 by now?"""
        for status in pathlib.Path("/proc").glob("[0-9]*/status"):
            try:
                if f"job{int(job):05}/slurm_script".encode() in (status.parent / "cmdline").read_bytes():
                    caught = int(re.search(r"SigCgt:\s*(\w+)", status.read_text())[1], 16)
                    return caught >> signal.SIGUSR1 - 1 & 1
            except (OSError, TypeError):  # it ended meanwhile
                pass
        return False

    def test_a_signal_before_the_ranks_have_started(self):
        """As soon as the batch script catches it: the job goes back into the queue all the same, and is done in its second round.
        More steps than ranks can take between the first time that they are told, while they start, and the next."""
        jobs, steps = {}, 100
        for launcher in LAUNCHERS:
            name = "early-" + launcher
            job = jobs[name] = self.submit("train", self.config, "--device", "cpu", "--set", f"train.steps={steps}", name=name,
                                              launcher=launcher)
            self.slurm.wait_for(lambda: self.listens(job), f"trap of {name}")
            self.slurm.call("scancel", "--batch", "--signal=USR1", job)
        for name, job in jobs.items():
            self.slurm.wait_for(lambda: self.slurm.state(job)["JobState"] == "PENDING", f"requeued {name}")
            self.slurm.call("scontrol", "update", f"JobId={job}", "StartTime=now+3")
        for name, job in jobs.items():
            with self.subTest(name):
                self.slurm.wait_for(lambda: self.ended(job), f"end of {name}", 60)
                state = self.slurm.state(job)
                self.assertEqual((state["JobState"], state["Restarts"]), ("COMPLETED", "1"), self.log(name, job))
                metrics = (self.folder / f"runs/{name}-{job}/metrics.jsonl").read_text().splitlines()
                self.assertEqual([json.loads(line)["step"] for line in metrics], list(range(1, steps + 1)))

    def test_a_rank_that_is_killed_fails_the_job(self):
        for launcher in LAUNCHERS:
            with self.subTest(launcher):
                name = "killed-" + launcher
                job = self.submit("train", self.config, "--device", "cpu", "--set", "comm.dead_after_s=4", name=name, nodes=2,
                                  launcher=launcher, fault=f"train:{STOP}:1:kill")
                self.slurm.wait_for(lambda: self.ended(job), "end of the job", 40)
                said, state = self.log(name, job), self.slurm.state(job)
                self.assertEqual((state["JobState"], state["Restarts"]), ("FAILED", "0"), said)
                self.assertRegex(said, rf"rank 1 on \S+ is gone, at step {STOP} in phase train")

    def test_srun_that_would_start_ranks_that_do_not_know_each_other(self):
        done = subprocess.run(["srun", "--mpi=none", "--nodes=2", "--ntasks=3", "build/release/slipstream", "train", "--config",
                               self.config, "--set", "log.dir=runs/alone"], cwd=self.folder, env=self.slurm.environment,
                              capture_output=True, text=True, timeout=30)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("srun started 3 tasks, but MPI sees 1 rank in each: use `srun --mpi=pmix ...`, or mpirun", done.stderr)
        self.assertFalse((self.folder / "runs").exists())

    def test_dump_goes_on_after_a_signal(self):
        config = write_config(self.folder / "dump.ini", {
            "target.path": "data/tiny/target", "drafter.config": "configs/tiny-drafter.json", "data.tokens": "data/tiny/heldout.h5",
            "data.row_tokens": 288, "dump.dir": "features", "dump.shard_bytes": 1000000})  # 35 rows for rank 0, 7 a shard
        job = self.submit("dump", config, "--device", "cpu", name="dump", nodes=2, fault="capture:30:0:pause")
        self.wait_for_log("test fault pause", "dump", job)
        self.slurm.call("scancel", "--batch", "--signal=USR1", job)
        self.wait_for_log("saved and stopped; back to the queue", "dump", job)
        self.slurm.wait_for(lambda: self.slurm.state(job)["JobState"] == "PENDING", "requeued dump")
        self.assertFalse(json.loads((self.folder / "features/manifest.json").read_text())["complete"])
        self.slurm.call("scontrol", "update", f"JobId={job}", "StartTime=now+3")
        self.slurm.wait_for(lambda: self.ended(job), "end of dump", 60)
        state = self.slurm.state(job)
        self.assertEqual((state["JobState"], state["Restarts"]), ("COMPLETED", "1"), self.log("dump", job))
        self.assertTrue(json.loads((self.folder / "features/manifest.json").read_text())["complete"])

    def test_decode(self):
        prompts = ("--target", "data/tiny/target", "--drafter", GOLDEN / "tiny-drafter", "--prompts", "data/tiny/prompts.h5",
                   "--device", "cpu", "--documents", 6, "--max-new", 20, "--json")
        want = json.loads(run("decode", *prompts).out)
        for launcher, nodes in (("srun", 2), ("mpirun", 2)):
            with self.subTest(launcher):
                job = self.submit("decode", *prompts, name="words", nodes=nodes, launcher=launcher)
                self.slurm.wait_for(lambda: self.ended(job), "end of decode", 60)
                self.assertEqual(self.slurm.state(job)["JobState"], "COMPLETED", self.log("words", job))
                report = re.search(r"^\{.*\}$", self.log("words", job), re.S | re.M)
                self.assertIsNotNone(report, self.log("words", job))
                got = json.loads(report[0])
                self.assertEqual([r["ids"] for r in got["responses"]], [r["ids"] for r in want["responses"]])

    def test_wrong_use(self):
        def batch(*arguments, **variables):
            done = subprocess.run(["bash", *arguments], cwd=self.folder, env={**self.slurm.environment, **variables},
                                  capture_output=True, text=True)
            self.assertEqual((done.returncode, len(done.stderr.splitlines()), done.stdout), (2, 1, ""), done.stderr)
            return done.stderr
        self.assertIn("usage: sbatch slurm/train.sbatch", batch("slurm/train.sbatch"))
        self.assertIn("no-such-build is missing", batch("slurm/train.sbatch", "run.ini", SLIPSTREAM="no-such-build"))
        self.assertIn("found 'prun'", batch("slurm/decode.sbatch", LAUNCHER="prun"))


if why := cluster.missing():
    print(f"skipped: {why}")
    sys.exit(1 if os.environ.get("SLIP_REQUIRE_SLURM") == "1" else 77)
unittest.main(verbosity=2)
