"""Whole runs: the same result again, on other numbers of ranks, and after a stop, a kill and a resume."""
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
import zlib

import h5py
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "apps"))
from program import DEVICE, DRAFTER, GOLDEN, ON_GPU, ROOT, Folder, command, documents, hf, run, write_config, write_shard  # noqa: E402

STEPS, HALF = 12, 6
SETTINGS = {
    "target.path": "data/tiny/target", "drafter.config": "configs/tiny-drafter.json", "data.tokens": "data/tiny/train.h5",
    "data.row_tokens": 288, "data.seed": 3, "train.steps": STEPS, "train.rows_per_step": 3, "train.anchors": 3, "train.lr": 2e-3,
    "train.precision": "fp32", "checkpoint.every_steps": HALF, "checkpoint.keep": 0, "comm.timeout_s": 60}
EXACT = ["step", "epoch", "rows", "bad_steps", "tokens", "labels", "draft_positions", "lr"]  # on any number of ranks
BITS = EXACT + ["loss", "accuracy", "acceptance_length", "slot_accuracy", "grad_norm"]      # on the same ranks


def columns(metrics, names):
    return [{n: m[n] for n in names} for m in metrics]


class Training(Folder):
    def config(self, directory, **settings):
        """train_steps=3 is train.steps = 3."""
        changed = {k.replace("_", ".", 1): v for k, v in settings.items()}
        return write_config(self.folder / f"{directory}.ini", {**SETTINGS, "log.dir": self.folder / directory, **changed})

    def train(self, directory, *options, ranks=None, code=0, **settings):
        done = run("train", "--device", DEVICE, "--config", self.config(directory, **settings), *options, ranks=ranks)
        if code is not None:
            self.assertEqual(done.code, code, done)
        return done

    def metrics(self, directory):
        return [json.loads(line) for line in (self.folder / directory / "metrics.jsonl").read_text().splitlines()]

    def checkpoint(self, directory, step):
        return self.folder / directory / "checkpoints" / f"step-{step:08}"

    def state(self, directory, step=STEPS):
        """Hashes of all weights and moments."""
        folder = self.checkpoint(directory, step)
        return [hashlib.sha256((folder / f).read_bytes()).hexdigest() for f in ("state/optimizer.safetensors", "drafter/model.safetensors")]

    def assert_same_run(self, a, b):
        self.assertEqual(columns(self.metrics(a), BITS), columns(self.metrics(b), BITS))
        self.assertEqual(self.state(a), self.state(b))

    def assert_same_rows(self, got, want, tolerance=1e-4):
        self.assertEqual(columns(got, EXACT), columns(want, EXACT))
        for g, w in zip(got, want):
            for name in ("loss", "grad_norm"):
                self.assertLessEqual(abs(g[name] / w[name] - 1), tolerance, f"{name} of step {g['step']}: {g[name]}, {w[name]}")

    def start(self, directory, *options, ranks=None, **settings):
        log = open(self.folder / f"{directory}.log", "w")
        self.addCleanup(log.close)
        return subprocess.Popen(command("train", "--device", DEVICE, "--config", self.config(directory, **settings), *options, ranks=ranks),
                                cwd=ROOT, stdout=log, stderr=log)

    def wait_for(self, what, job, seconds=60):
        end = time.monotonic() + seconds
        while not what():
            self.assertIsNone(job.poll(), "the run ended before it was stopped")
            self.assertLess(time.monotonic(), end)
            time.sleep(0.002)

    def kill_after_checkpoint(self, directory, step, ranks):
        """SIGKILL to every rank once the checkpoint of `step` is there."""
        job = self.start(directory, ranks=ranks)
        self.wait_for(lambda: self.steps_so_far(directory) > 0, job)
        pids = self.ranks_of(directory)
        self.assertEqual(len(pids), ranks or 1)
        self.wait_for(lambda: (self.checkpoint(directory, step) / "manifest.json").exists(), job)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:  # mpirun was faster
                pass
        self.assertNotEqual(job.wait(timeout=60), 0)
        self.assertFalse(self.checkpoint(directory, STEPS).exists(), "it finished before it was killed")

    def steps_so_far(self, directory):
        path = self.folder / directory / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def ranks_of(self, directory):
        """Process ids of the ranks of the run with this configuration."""
        found = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it ended meanwhile
                continue
            if words[0].endswith(b"/slipstream") and str(self.folder / f"{directory}.ini").encode() in words:
                found.append(int(folder.name))
        return found


class SameResult(Training):
    def test_repeated(self):
        for ranks, roles in ((None, {}), (4, {"roles_targets": 2, "roles_drafters": 2})):
            self.train(f"a{ranks}", ranks=ranks, **roles)
            self.train(f"b{ranks}", ranks=ranks, **roles)
            self.assertEqual(len(self.metrics(f"a{ranks}")), STEPS)
            self.assert_same_run(f"a{ranks}", f"b{ranks}")
        self.train("other", data_seed=4)
        self.assertNotEqual(self.metrics("other")[0]["loss"], self.metrics("aNone")[0]["loss"])

    def test_on_any_number_of_ranks(self):
        held_out = {"eval_tokens": "data/tiny/heldout.h5", "eval_anchors": 1}
        self.train("1", **held_out)
        one = self.metrics("1")
        self.assertEqual([m["rows"] for m in one], [3] * STEPS)
        evaluations = [json.loads(line) for line in (self.folder / "1/eval.jsonl").read_text().splitlines()]
        self.assertEqual([e["step"] for e in evaluations], [0, STEPS])
        for targets, drafters in ((1, 1), (2, 2), (3, 2)):
            with self.subTest(f"{targets}+{drafters}"):
                name = f"{targets}+{drafters}"
                self.train(name, ranks=targets + drafters, roles_targets=targets, roles_drafters=drafters, **held_out)
                plan = json.loads((self.folder / name / "plan.json").read_text())
                self.assertEqual(sum(r["role"] == "target" for r in plan["rank"]), targets)
                logs = [(self.folder / name / f"log/rank-{r:04}.log").read_text() for r in range(targets + drafters)]
                received = [re.findall(r"bytes of weights received from rank (\d+)", text) for text in logs]  # the first of each role reads
                self.assertEqual(received, [[] if r in (0, drafters) else ["0" if r < drafters else str(drafters)] for r in range(targets + drafters)])
                self.assert_same_rows(self.metrics(name), one)
                again = [json.loads(line) for line in (self.folder / name / "eval.jsonl").read_text().splitlines()]
                for e, w in zip(again, evaluations, strict=True):
                    self.assertEqual([e[k] for k in ("step", "rows", "tokens", "labels", "blocks")], [w[k] for k in ("step", "rows", "tokens", "labels", "blocks")])
                    self.assertLessEqual(abs(e["loss"] / w["loss"] - 1), 1e-4)

    def test_more_drafters_than_rows(self):  # A6, G9
        self.train("1", train_rows_per_step=2)
        self.train("1+3", ranks=4, train_rows_per_step=2, roles_targets=1, roles_drafters=3)
        self.assert_same_rows(self.metrics("1+3"), self.metrics("1"))
        self.assertLess(self.metrics("1")[-1]["loss"], self.metrics("1")[0]["loss"])

    def test_the_last_step_of_an_epoch(self):  # D8
        shard = write_shard(self.folder / "ten.h5", documents([30] * 10), 272, 258)
        settings = {"data_tokens": shard, "data_row_tokens": 30, "train_rows_per_step": 4, "train_steps": 0, "data_epochs": 2}
        self.train("1", **settings)
        one = self.metrics("1")
        self.assertEqual([(m["epoch"], m["rows"]) for m in one], [(0, 4), (0, 4), (0, 2), (1, 4), (1, 4), (1, 2)])
        self.assertEqual([m["tokens"] for m in one], [30 * m["rows"] for m in one])
        self.train("1+2", ranks=3, roles_targets=1, roles_drafters=2, **settings)
        self.assert_same_rows(self.metrics("1+2"), one)

    def test_passes_of_blocks_and_queues_are_free(self):
        self.train("a")
        self.train("b", train_blocks_per_pass=1)
        self.assert_same_rows(self.metrics("b"), self.metrics("a"))
        self.train("c", ranks=2, roles_queue_rows=1)
        self.train("d", ranks=2, roles_queue_rows=4)
        self.assertEqual(columns(self.metrics("c"), BITS), columns(self.metrics("d"), BITS))


@unittest.skipUnless(ON_GPU, "needs a GPU")
class OneGpu(Training):
    def test_two_ranks_are_refused_before_anything_is_written(self):
        before = set(self.folder.iterdir())
        config = self.config("run", dump_dir=self.folder / "dump")
        for what in ("train", "dump"):
            words = [w for w in command(what, "--device", "cuda", "--config", config, ranks=2) if w != "--share-gpu"]
            done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=90, env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"})
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("ranks 0 and 1 have the same GPU", done.stderr)
            self.assertEqual(set(self.folder.iterdir()) - before, {config}, what)


class Resume(Training):
    def test_killed(self):  # D4, D1
        for ranks in (None, 2):
            whole, killed = f"whole{ranks}", f"killed{ranks}"
            self.train(whole, ranks=ranks)
            self.kill_after_checkpoint(killed, HALF, ranks)
            self.train(killed, "--resume", "auto", ranks=ranks)
            self.assert_same_run(killed, whole)
            self.assertEqual([m["step"] for m in self.metrics(killed)], list(range(1, STEPS + 1)))

    def stop(self, directory, number, ranks, **settings):
        """Asks a run to save and stop in its third step or soon after; the number of steps that it made."""
        job = self.start(directory, ranks=ranks, **settings)
        self.wait_for(lambda: self.steps_so_far(directory) >= 2, job)
        job.send_signal(number)
        log = self.folder / f"{directory}.log"
        self.assertEqual(job.wait(timeout=60), 75, log.read_text())
        stopped = len(self.metrics(directory))
        self.assertTrue((self.checkpoint(directory, stopped) / "manifest.json").exists())
        self.assertIn(f"stopped after step {stopped}", log.read_text())
        return stopped

    def test_asked_to_stop(self):  # G7
        longer = {"train_steps": 40, "checkpoint_every_steps": 0}
        self.train("whole", **longer)
        self.assertLess(self.stop("alone", signal.SIGTERM, None, **longer), 40)
        self.train("alone", "--resume", "auto", **longer)
        self.assertEqual(columns(self.metrics("alone"), BITS), columns(self.metrics("whole"), BITS))
        self.assertEqual(self.state("alone", 40), self.state("whole", 40))
        # continued on other ranks: the same rows follow
        self.assertLess(self.stop("split", signal.SIGUSR1, 2, **longer), 40)
        self.train("split", "--resume", "auto", ranks=5, roles_targets=3, roles_drafters=2, **longer)
        self.assert_same_rows(self.metrics("split"), self.metrics("whole"))

    def test_out_of_time(self):
        self.train("run", train_max_minutes=1e-9, code=75)
        self.assertEqual(len(self.metrics("run")), 1)
        self.train("run", "--resume", "auto")
        self.assertEqual(len(self.metrics("run")), STEPS)

    def test_what_may_not_change(self):  # D5
        self.train("run", train_steps=HALF)
        before = self.state("run", HALF)
        drafter = json.loads((ROOT / "configs/tiny-drafter.json").read_text())
        drafter["block_size"] = drafter["dflash_config"]["block_size"] = 4
        (self.folder / "drafter.json").write_text(json.dumps(drafter))
        for parts, settings in [
                (["train.rows_per_step", "3", "4"], {"train_rows_per_step": 4}), (["train.anchors", "3", "5"], {"train_anchors": 5}),
                (["train.lr", "0.002", "0.003"], {"train_lr": 3e-3}), (["data.seed", "3", "8"], {"data_seed": 8}),
                (["train.loss", "decay", "dpace"], {"train_loss": "dpace"}),
                (["documents of data.tokens"], {"data_tokens": "data/tiny/heldout.h5"}),
                (["drafter.json", "another drafter"], {"drafter_config": self.folder / "drafter.json"}),
                (["train.steps", "6", "12", "--extend"], {"train_steps": STEPS})]:
            with self.subTest(settings):
                done = self.train("run", "--resume", "auto", code=2, **{"train_steps": HALF, **settings})
                self.assertEqual((len(done.err.splitlines()), done.out), (1, ""), done)
                for part in parts + ["step-00000006"]:
                    self.assertIn(part, done.err)
                self.assertEqual(len(self.metrics("run")), HALF)
                self.assertEqual(self.state("run", HALF), before)
        done = self.train("run", "--resume", "auto", "--allow-changes", train_steps=STEPS, train_lr=3e-3)
        self.assertIn("in spite of it: train.lr", done.err)
        self.assertEqual(len(self.metrics("run")), STEPS)

    def test_unfinished_checkpoints(self):  # D6
        self.train("whole")
        shutil.copytree(self.folder / "whole", self.folder / "run")
        shutil.rmtree(self.checkpoint("run", STEPS))
        partial = self.folder / "run/checkpoints/step-00000012.partial"
        shutil.copytree(self.checkpoint("run", HALF) / "state", partial / "state")
        bare = self.checkpoint("run", 9)
        shutil.copytree(self.checkpoint("run", HALF), bare)
        (bare / "manifest.json").unlink()
        cut = self.checkpoint("run", 10)
        shutil.copytree(self.checkpoint("run", HALF), cut)
        os.truncate(cut / "state/optimizer.safetensors", 1000)
        with open(self.folder / "run/metrics.jsonl", "a") as f:
            f.write('{"step":13,"lo')  # a line that was being written
        done = self.train("run", "--resume", "auto")
        for name in ("step-00000012.partial", "step-00000009", "step-00000010"):
            self.assertIn(name, done.err)
        self.assert_same_run("run", "whole")
        self.assertFalse(partial.exists())
        self.assertEqual((self.folder / "run/checkpoints/latest").read_text(), "step-00000012\n")

    def test_a_damaged_checkpoint_is_refused(self):
        self.train("run", train_steps=HALF)
        path = self.checkpoint("run", HALF) / "state/optimizer.safetensors"
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(data)
        done = self.train("run", "--resume", "auto", "--extend", "2", code=3, train_steps=HALF)
        self.assertEqual(len(done.err.splitlines()), 1, done)
        self.assertIn("state/optimizer.safetensors", done.err)
        self.assertIn("checksum", done.err)

    def test_finished_and_extended(self):
        self.train("run", train_steps=HALF)
        before = self.state("run", HALF)
        done = self.train("run", "--resume", "auto", train_steps=HALF)
        self.assertIn("finished", done.err)
        self.assertEqual(self.state("run", HALF), before)
        self.train("run", "--resume", "auto", "--extend", "4", train_steps=HALF)
        self.assertEqual([m["step"] for m in self.metrics("run")], list(range(1, HALF + 5)))
        self.assertTrue((self.checkpoint("run", HALF + 4) / "manifest.json").exists())
        done = self.train("run", code=2, train_steps=HALF)
        self.assertIn("--resume auto", done.err)

    def test_auto_starts_where_there_is_nothing(self):
        self.train("run", "--resume", "auto", train_steps=2)
        self.assertEqual(len(self.metrics("run")), 2)

    def test_from_a_named_checkpoint(self):
        self.train("whole")
        self.train("run", "--resume", self.checkpoint("whole", HALF))
        self.assertEqual(columns(self.metrics("run"), BITS), columns(self.metrics("whole"), BITS)[HALF:])
        self.assertEqual(self.state("run"), self.state("whole"))


class Fp8(Training):
    def setUp(self):
        super().setUp()
        if ON_GPU and not subprocess.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True, text=True).stdout.startswith("9."):
            (self.fail if os.environ.get("SLIP_REQUIRE_GPU") == "1" else self.skipTest)("fp8 runs on Hoppers alone")

    def test_same_result_resumed_and_on_other_ranks(self):
        """Fewer blocks a pass than a document has: the copies of the last pass are shorter than their memory."""
        fp8 = {"train_precision": "fp8", "train_blocks_per_pass": 2}
        self.train("whole", **fp8)
        self.train("again", **fp8)
        self.assert_same_run("again", "whole")
        self.train("part", train_max_minutes=1e-9, code=75, **fp8)
        self.train("part", "--resume", "auto", **fp8)
        self.assert_same_run("part", "whole")
        self.train("ranks", ranks=3, roles_targets=1, roles_drafters=2, **fp8)
        self.assert_same_rows(self.metrics("ranks"), self.metrics("whole"), tolerance=0.03)  # sums in another order move a code here and there

    def test_near_bf16(self):
        for precision in ("bf16", "fp8"):
            self.train(precision, train_precision=precision)
        bf16, fp8 = self.metrics("bf16"), self.metrics("fp8")
        self.assertNotEqual(fp8[0]["loss"], bf16[0]["loss"])
        self.assert_same_rows(fp8[:1], bf16[:1], tolerance=0.1)
        for a, b in zip(fp8, bf16):  # at a high rate; tests/gpus/fp8.py compares curves
            self.assertLess(abs(a["loss"] / b["loss"] - 1), 0.1)
        self.assertLess(abs(sum(m["loss"] for m in fp8) / sum(m["loss"] for m in bf16) - 1), 0.04)

    def test_a_wide_model_has_its_head_in_fp8(self):
        """With nothing quantized before the first step every logit would be 0, and no gradient would leave the head."""
        config = json.loads((GOLDEN / "tiny-qwen3/config.json").read_text())
        (self.folder / "target").mkdir()
        (self.folder / "target/config.json").write_text(json.dumps({**config, "hidden_size": 1024, "num_hidden_layers": 2, "tie_word_embeddings": False}))
        taps = {"dflash_config": {**DRAFTER["dflash_config"], "target_layer_ids": [0, 1]}, "num_target_layers": 2}
        (self.folder / "drafter.json").write_text(json.dumps({**DRAFTER, **taps, "hidden_size": 1024}))
        shard = write_shard(self.folder / "wide.h5", documents([40] * 8), 256, 255)
        said, rows = {}, {}
        for precision in ("bf16", "fp8"):
            said[precision] = self.train(precision, "--synthetic-weights", target_path=self.folder / "target", drafter_config=self.folder / "drafter.json", data_tokens=shard,
                                         train_steps=2, checkpoint_every_steps=0, train_precision=precision).err
            rows[precision] = self.metrics(precision)
        self.assertNotIn("stays in the working type", said["fp8"])
        self.assertNotEqual(rows["fp8"][0]["loss"], rows["bf16"][0]["loss"])
        self.assert_same_rows(rows["fp8"][:1], rows["bf16"][:1], tolerance=0.05)
        said["narrow"] = self.train("narrow", train_precision="fp8", train_steps=1).err
        self.assertRegex(said["narrow"], r"the head, 272 x \d+, stays in the working type")


class BadRows(Training):  # C3
    """A target whose embedding of token 77 is NaN; document 7 alone contains it."""

    def setUp(self):
        super().setUp()
        shutil.copytree(GOLDEN / "tiny-qwen3", self.folder / "target")
        weights = self.folder / "target/model.safetensors"
        tensors, _ = hf.read(weights)
        embedding = tensors["model.embed_tokens.weight"].copy()
        tensors["lm_head.weight"] = embedding.copy()
        embedding[77] = np.nan
        tensors["model.embed_tokens.weight"] = embedding
        hf.write(str(weights), {n: np.asarray(x, np.float32) for n, x in tensors.items()})
        config = json.loads((self.folder / "target/config.json").read_text())
        (self.folder / "target/config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
        (self.folder / "drafter.json").write_text(json.dumps(DRAFTER))
        docs = [([i if i != 77 else 78 for i in ids], mask) for ids, mask in documents([20] * 10)]
        docs[7][0][2] = 77
        self.shard = write_shard(self.folder / "ten.h5", docs, 256, 255)
        self.settings = {"target_path": self.folder / "target", "drafter_config": self.folder / "drafter.json", "data_tokens": self.shard,
                         "data_row_tokens": 20, "data_shuffle": "false", "data_epochs": 1, "train_steps": 0, "train_rows_per_step": 1,
                         "train_schedule": "constant", "train_warmup_ratio": 0, "checkpoint_every_steps": 0}

    def test_skipped_and_counted(self):
        done = self.train("run", train_max_bad_steps=1, **self.settings)
        self.assertIn("documents 7", done.err)
        metrics = self.metrics("run")
        self.assertEqual([m["step"] for m in metrics], list(range(1, 10)))
        self.assertTrue(all(np.isfinite(m["loss"]) and m["rows"] == 1 for m in metrics))
        trainer = json.loads((self.checkpoint("run", 9) / "state/trainer.json").read_text())
        self.assertEqual((trainer["bad_steps"], trainer["bad_in_a_row"]), (1, 0))
        self.assertEqual([m["bad_steps"] for m in metrics], [0] * 7 + [1] * 2)
        # the same weights as if document 7 were not there, its number left free
        with h5py.File(self.shard, "r+") as f:
            f["loss_mask"][140:160] = 0
            f["loss_mask"].attrs["crc32"] = zlib.crc32(f["loss_mask"][:].tobytes())
            f.attrs["supervised_tokens"] = int(f["loss_mask"][:].sum())
        self.train("without", train_max_bad_steps=1, **self.settings)
        self.assertEqual(self.state("run", 9), self.state("without", 9))
        self.assertEqual([m["loss"] for m in metrics], [m["loss"] for m in self.metrics("without")])

    def test_on_two_ranks(self):
        self.train("one", train_max_bad_steps=1, **{**self.settings, "train_rows_per_step": 3})
        self.train("two", ranks=3, train_max_bad_steps=1, roles_targets=1, **{**self.settings, "train_rows_per_step": 3})
        self.assertEqual([(m["step"], m["rows"], m["bad_steps"]) for m in self.metrics("one")], [(1, 3, 0), (2, 3, 0), (3, 1, 1)])
        self.assert_same_rows(self.metrics("two"), self.metrics("one"))

    def test_more_than_allowed(self):
        for ranks in (None, 2):
            done = self.train(f"run{ranks}", ranks=ranks, code=1, train_max_bad_steps=0, **self.settings)
            self.assertIn("documents 7", done.err)
            self.assertIn("train.max_bad_steps", done.err)

    def test_loss_that_is_not_finite(self):
        weights = self.folder / "target/model.safetensors"
        tensors, _ = hf.read(weights)
        head = np.array(tensors["lm_head.weight"], np.float32)
        head[200] = np.inf
        hf.write(str(weights), {**{n: np.asarray(x, np.float32) for n, x in tensors.items()}, "lm_head.weight": head})
        for ranks, roles in ((None, {}), (3, {"roles_targets": 1, "roles_drafters": 2})):
            done = self.train(f"run{ranks}", ranks=ranks, code=1, train_max_bad_steps=2, **{**self.settings, "train_rows_per_step": 2}, **roles)
            self.assertEqual(self.metrics(f"run{ranks}"), [])
            self.assertEqual(done.err.count("the step after step 0 is skipped: the loss or the gradients hold NaN or infinity"), 3 * (1 if ranks is None else 2), done)
            self.assertIn("its documents on this rank: 0, 1" if ranks is None else "its documents on this rank: 1", done.err)
            self.assertIn("3 steps in a row held NaN or infinity, train.max_bad_steps allows 2", done.err)
            self.assertFalse((self.folder / f"run{ranks}/checkpoints").exists())


class Hybrid(Training):
    """A target with gated delta nets and gated attention: what the drafter must learn is in its features."""

    def test_learns(self):
        drafter = self.folder / "drafter.json"
        drafter.write_text(json.dumps(DRAFTER))
        cycle = [3, 141, 59, 26, 53, 58, 97, 93, 238, 46, 26, 43]  # after 26 comes 53 or 43: the context decides
        shard = write_shard(self.folder / "cycle.h5", [([cycle[(start + t) % 12] for t in range(50 + 3 * start)], [0] * 4 + [1] * (46 + 3 * start))
                                                       for start in range(12)], 256, 255)
        settings = {"target_path": GOLDEN / "tiny-qwen3_5", "drafter_config": drafter, "data_tokens": shard, "train_steps": 120,
                    "train_anchors": 8}
        self.train("one", **settings)
        one = self.metrics("one")
        self.assertLess(one[-1]["loss"], one[0]["loss"] / 2)
        self.assertGreater(one[-1]["accuracy"], 0.9)
        self.train("three", ranks=3, **settings)
        self.assert_same_rows(self.metrics("three")[:5], one[:5])


if __name__ == "__main__":
    unittest.main(verbosity=2)
