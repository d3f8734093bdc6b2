"""Prompts that are decoded while a run trains: training does not notice, `decode` says the same, a difference ends the run."""
import json
import os
import unittest

import h5py

from training_test import DEVICE, DRAFTER, GOLDEN, ON_GPU, STEPS, Training, run, write_shard

PROMPTS = {"eval_prompts": "data/tiny/prompts.h5", "eval_max_new": 6}
SHAPES = [(None, {}), (4, {"roles_targets": 2, "roles_drafters": 2}), (4, {"roles_targets": 1, "roles_drafters": 3, "train_rows_per_step": 2})]


class Evaluation(Training):
    def evaluations(self, directory):
        return [json.loads(line) for line in (self.folder / directory / "eval.jsonl").read_text().splitlines()]

    def decode(self, drafter, *options):
        done = run("decode", "--target", "data/tiny/target", "--drafter", drafter, "--prompts", "data/tiny/prompts.h5", "--max-new", 6,
                   "--device", DEVICE, "--precision", "fp32", "--json", *options)
        self.assertEqual(done.code, 0, done)
        return json.loads(done.out)

    def test_training_does_not_notice(self):
        for i, (ranks, roles) in enumerate(SHAPES):
            with self.subTest(roles):
                self.train(f"without{i}", ranks=ranks, **roles)
                self.train(f"with{i}", ranks=ranks, eval_every_steps=5, **PROMPTS, **roles)
                self.assert_same_run(f"with{i}", f"without{i}")
                evaluations = self.evaluations(f"with{i}")
                self.assertEqual([e["step"] for e in evaluations], [0, 5, 10, STEPS])
                for e in evaluations:
                    self.assertNotIn("loss", e)  # no eval.tokens
                    parity = e["decoded"]["parity"]
                    self.assertGreater(parity["cycles"], 300)
                    self.assertEqual((parity["equal"] + parity["near_ties"], parity["different"]), (parity["cycles"], 0))
                    self.assertLessEqual(parity["near_ties"], 3)
        # On any number of ranks and by `decode`: the same responses, so the same figures.
        want = self.decode(self.checkpoint("with0", STEPS) / "drafter")
        got = self.evaluations("with0")[-1]["decoded"]
        for key in ("documents", "tokens", "cycles", "pooled", "mean", "pooled_raw", "mean_raw", "histogram", "per_slot", "families"):
            self.assertEqual(got[key], want[key], key)
        start = self.decode("configs/tiny-drafter.json", "--untrained", "--seed", 3)
        for i in range(len(SHAPES)):
            first = self.evaluations(f"with{i}")[0]["decoded"]
            self.assertEqual((first["pooled"], first["histogram"]), (start["pooled"], start["histogram"]))

    def test_beside_held_out_documents_and_after_a_resume(self):
        both = {"eval_tokens": "data/tiny/heldout.h5", "eval_anchors": 1, "eval_every_steps": 6, **PROMPTS}
        done = self.train("whole", **both)
        self.assertIn("decoded acceptance length by document family", done.err)
        self.assertRegex(done.err, r"held-out acceptance length 1\.\d\d -> 1\.\d\d simulated, 1\.\d\d -> 1\.\d\d decoded")
        self.assertTrue(all(e["loss"] > 0 and e["decoded"]["pooled"] >= 1 for e in self.evaluations("whole")))
        self.train("run", train_max_minutes=1e-9, code=75, **both)
        self.train("run", "--resume", "auto", ranks=2, **both)
        self.assertEqual([e["step"] for e in self.evaluations("run")], [0, 6, STEPS])

    def test_a_difference_ends_the_run(self):
        for ranks, at in ((None, 0), (4, 1)):  # drafter 1: the message comes from drafter 0 all the same
            os.environ["SLIP_TEST_FAULT"] = f"replay:0:{at}:spoil"
            self.addCleanup(os.environ.pop, "SLIP_TEST_FAULT", None)
            name = f"run{ranks}"
            # an untrained drafter accepts nothing either way: start from one that was trained
            warm = {"drafter_config": "", "drafter_init_from": "tests/golden/tiny-drafter", **PROMPTS}
            done = self.train(name, ranks=ranks, code=1 if ranks is None else None, **warm)
            self.assertNotEqual(done.code, 0)
            for part in ("training and decoding disagree about", "decoding accepted", "Likely causes"):
                self.assertEqual(done.err.count(part), 1, done)
            self.assertGreater(self.evaluations(name)[0]["decoded"]["parity"]["different"], 10)
            self.assertFalse(self.checkpoint(name, STEPS).exists())
            del os.environ["SLIP_TEST_FAULT"]

    def test_a_target_dies_while_it_decodes(self):
        os.environ["SLIP_TEST_FAULT"] = "decode:0:1:kill"
        self.addCleanup(os.environ.pop, "SLIP_TEST_FAULT", None)
        done = self.train("run", ranks=2, code=None, **PROMPTS)
        self.assertEqual(done.code, 4, done)
        self.assertRegex(done.err, r"rank 1 on \S+ is gone, at step 0 in phase decode")

    def test_the_best_checkpoint_stays(self):
        self.train("run", checkpoint_every_steps=0, checkpoint_keep=1, checkpoint_keep_best=1, eval_every_steps=2, train_lr=2e-2, **PROMPTS)
        decoded = {e["step"]: e["decoded"]["pooled"] for e in self.evaluations("run") if e["step"] > 0}
        best = max(decoded, key=lambda step: (decoded[step], step))
        folder = self.folder / "run/checkpoints"
        self.assertEqual((folder / "best").read_text(), f"step-{best:08}\n")
        self.assertEqual({p.name for p in folder.glob("step-*")}, {f"step-{best:08}", f"step-{STEPS:08}"})
        manifest = json.loads((folder / f"step-{best:08}/manifest.json").read_text())
        self.assertEqual(manifest["decoded_acceptance"], decoded[best])

    def test_refusals(self):
        begins = write_shard(self.folder / "begins.h5", [([65, 66, 67], [1, 1, 1])], 272, 258)
        for code, part, settings in [(3, "absent.h5", {"eval_prompts": "absent.h5"}), (3, "begins.h5", {"eval_prompts": begins}),
                                     (2, "eval.max_new", {"eval_max_new": 0}), (2, "checkpoint.keep_best", {"checkpoint_keep_best": 1})]:
            done = self.train("run", code=code, **settings)
            with self.subTest(part):
                self.assertEqual((len(done.err.splitlines()), part in done.err), (1, True), done)
                self.assertFalse((self.folder / "run").exists())

    def test_the_plan_counts_what_decoding_needs(self):
        tables = []
        for i, more in enumerate(({}, PROMPTS)):
            done = run("plan", "--config", self.config(f"plan{i}", **more), "--ranks", 2, "--json")
            self.assertEqual(done.code, 0, done)
            tables.append([r["memory"] for r in json.loads(done.out)["rank"]])
        self.assertNotIn("cache.target", tables[0][1])
        self.assertIn("cache.target", tables[1][1])
        self.assertIn("drafter.weights", tables[1][1])
        self.assertGreater(tables[1][0]["replay.logits"], 0)

    @unittest.skipUnless(ON_GPU, "bf16 is a GPU's")
    def test_in_bf16(self):
        """Features round at other places in decoding and in training: a choice may differ where logits nearly tie."""
        warm = {"drafter_config": "", "drafter_init_from": "tests/golden/tiny-drafter", "train_precision": "bf16"}
        self.train("without", **warm)
        self.train("with", eval_prompts="data/tiny/prompts.h5", eval_max_new=60, **warm)
        self.assert_same_run("with", "without")
        for e in self.evaluations("with"):
            parity = e["decoded"]["parity"]
            print("bf16 parity after step", e["step"], parity, "pooled", e["decoded"]["pooled"])
            self.assertGreater(parity["cycles"], 1000)
            self.assertEqual(parity["different"], 0)
        self.assertGreater(self.evaluations("with")[0]["decoded"]["pooled"], 1.8)


class HybridEvaluation(Training):
    """From a target with gated delta nets to answers, a drafter that learns them, and what it is worth when it decodes."""

    def evaluations(self, directory):
        return [json.loads(line) for line in (self.folder / directory / "eval.jsonl").read_text().splitlines()]

    def generate(self, name, *options):
        done = run("generate", "--target", GOLDEN / "tiny-qwen3_5", "--prompts", self.prompts, "--out", self.folder / name, "--device", DEVICE,
                   "--precision", "fp32", "--max-new", 40, *options)
        self.assertEqual(done.code, 0, done)
        with h5py.File(self.folder / name) as f:
            return f["input_ids"][:].tolist()

    def test_from_prompts_to_a_drafter(self):
        (self.folder / "drafter.json").write_text(json.dumps(DRAFTER))
        self.prompts = write_shard(self.folder / "prompts.h5", [([(37 * n + 11 * t * t + t) % 255 for t in range(3 + n % 9)], [0] * (3 + n % 9))
                                                                for n in range(12)], 256, 255, "--prompts")
        answers = self.generate("answers.h5")
        settings = {"target_path": GOLDEN / "tiny-qwen3_5", "drafter_config": self.folder / "drafter.json", "data_tokens": self.folder / "answers.h5",
                    "train_steps": 150, "train_anchors": 30, "train_lr": 1e-2, "checkpoint_every_steps": 0}
        evaluated = {"eval_prompts": self.prompts, "eval_max_new": 40, "eval_every_steps": 75}
        self.train("without", **settings)
        self.train("with", **settings, **evaluated)
        self.assertEqual(self.state("with", 150), self.state("without", 150))
        evaluations = self.evaluations("with")
        self.assertEqual([e["step"] for e in evaluations], [0, 75, 150])
        for e in evaluations:
            parity = e["decoded"]["parity"]
            print("step", e["step"], "decoded", e["decoded"]["pooled"], parity)
            self.assertGreater(parity["cycles"], 100)
            self.assertEqual(parity["different"], 0)
        first, last = evaluations[0]["decoded"], evaluations[-1]["decoded"]
        self.assertLess(first["pooled"], 1.2)
        self.assertGreater(last["pooled"], first["pooled"] + 0.5)
        # `decode` says the same of the checkpoint, `generate` gives the same answers with it.
        drafter = self.checkpoint("with", 150) / "drafter"
        done = run("decode", "--target", GOLDEN / "tiny-qwen3_5", "--drafter", drafter, "--prompts", self.prompts, "--max-new", 40, "--device", DEVICE,
                   "--precision", "fp32", "--json", "--baseline")
        self.assertEqual(done.code, 0, done)
        decoded = json.loads(done.out)
        self.assertEqual(decoded["baseline"]["equal"], 12)
        for key in ("tokens", "cycles", "pooled", "histogram"):
            self.assertEqual(last[key], decoded[key], key)
        self.assertEqual(self.generate("again.h5", "--drafter", drafter), answers)
        # Targets and drafters apart: training does not notice either.
        short = {**settings, "train_steps": 6}
        roles = {"roles_targets": 2, "roles_drafters": 1}
        self.train("without3", ranks=3, **short, **roles)
        self.train("with3", ranks=3, **short, **evaluated, **roles)
        self.assertEqual(self.state("with3", 6), self.state("without3", 6))
        self.assertEqual(self.evaluations("with3")[0]["decoded"]["histogram"], first["histogram"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
