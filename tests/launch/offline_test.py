"""Training from feature shards: the same rows, anchors and losses as from the target, bit for bit; and dumps made while training."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

import h5py

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "apps"))
from program import DRAFTER, GOLDEN, ON_GPU, ROOT, Folder, command, documents, run, write_config, write_shard  # noqa: E402

LENGTHS = [20, 12, 30, 16, 39, 8, 25, 31, 18, 22, 40, 11, 35, 27, 14, 38]
BITS = ["step", "epoch", "rows", "tokens", "labels", "draft_positions", "lr", "loss", "accuracy", "acceptance_length", "slot_accuracy", "grad_norm"]
DEVICE = "cuda" if ON_GPU else "cpu"


class Offline(Folder):
    def setUp(self):
        super().setUp()
        self.tokens = write_shard(self.folder / "train.h5", documents(LENGTHS * 3), 256, 255)
        self.heldout = write_shard(self.folder / "heldout.h5", documents(LENGTHS[:5]), 256, 255)
        (self.folder / "drafter.json").write_text(json.dumps(DRAFTER))
        self.base = {"target.path": GOLDEN / "tiny-qwen3", "drafter.config": self.folder / "drafter.json", "data.row_tokens": 64, "data.seed": 5,
                     "train.steps": 8, "train.rows_per_step": 3, "train.anchors": 4, "train.precision": "fp32", "comm.timeout_s": 60}

    def config(self, name, settings):
        changed = {k.replace("_", ".", 1): v for k, v in settings.items()}
        return write_config(self.folder / f"{name}.ini", {**self.base, **changed})

    def dump(self, name="dump", code=0, ranks=None, **settings):
        done = run("dump", "--device", DEVICE, "--config", self.config(name, {"data_tokens": self.tokens, "dump_dir": self.folder / name,
                   "dump_shard_bytes": 120000, **settings}), ranks=ranks)
        self.assertEqual(done.code, code, done)
        return self.folder / name

    def train(self, name, *options, code=0, ranks=None, **settings):
        done = run("train", "--device", DEVICE, "--config", self.config(name, {"log_dir": self.folder / name, **settings}), *options, ranks=ranks)
        self.assertEqual(done.code, code, done)
        return done

    def metrics(self, name, keys=BITS, file="metrics.jsonl"):
        return [{k: m[k] for k in keys if k in m} for m in map(json.loads, (self.folder / name / file).read_text().splitlines())]

    def drafter(self, name):
        return (sorted((self.folder / name / "checkpoints").glob("step-*"))[-1] / "drafter" / "model.safetensors").read_bytes()

    def assert_same(self, a, b):
        self.assertEqual(self.metrics(a), self.metrics(b))
        self.assertEqual(self.drafter(a), self.drafter(b))

    def shards(self, folder):
        return [folder / s["name"] for s in json.loads((folder / "manifest.json").read_text())["shards"]]


class SameBits(Offline):
    def test_one_rank_and_a_moved_folder(self):
        held = self.dump("held", data_tokens=self.heldout, data_shuffle="false")
        dump = self.dump()
        self.train("online", data_tokens=self.tokens, eval_tokens=self.heldout)
        self.train("offline", data_features=dump, eval_features=held)
        self.assertEqual(len(self.metrics("online")), 8)
        self.assert_same("online", "offline")
        self.assertEqual((self.folder / "online/eval.jsonl").read_text(), (self.folder / "offline/eval.jsonl").read_text())
        os.makedirs(self.folder / "模型 ø")
        os.rename(dump, self.folder / "模型 ø" / "日本 語")
        self.train("moved", data_features=self.folder / "模型 ø" / "日本 語" / "*.h5")  # the virtual file is left out
        self.assert_same("online", "moved")

    def test_several_ranks(self):
        dump = self.dump(ranks=2)
        self.train("online", ranks=3, data_tokens=self.tokens, roles_targets=1, roles_drafters=2)
        self.train("offline", ranks=2, data_features=dump)
        self.assert_same("online", "offline")
        plan = json.loads((self.folder / "offline/plan.json").read_text())
        self.assertEqual([r["role"] for r in plan["rank"]], ["drafter", "drafter"])

    def test_what_is_stored_does_not_matter(self):
        self.train("online", data_tokens=self.tokens)
        for name, how in {"some": {"dump_span": "supervised"}, "archive": {"dump_compress": "deflate", "dump_bf16": "uint16"}}.items():
            self.train(f"from-{name}", data_features=self.dump(name, **how), data_reader_threads=3)
            self.assert_same("online", f"from-{name}")

    def test_mixed_with_rows_that_are_computed(self):
        part = self.dump(dump_max_bytes=450000)
        self.assertLess(0, len(self.shards(part)))
        for ranks, roles in ((None, {}), (3, {"roles_targets": 1, "roles_drafters": 2})):
            self.train(f"online{ranks}", ranks=ranks, data_tokens=self.tokens, **roles)
            done = self.train(f"mixed{ranks}", ranks=ranks, data_tokens=self.tokens, data_features=part, **roles)
            self.assertRegex(done.err, r"[1-9]\d* of \d+ rows of the first epoch are read from")
            self.assert_same(f"online{ranks}", f"mixed{ranks}")

    def test_resumed(self):
        dump = self.dump()
        settings = {"data_features": dump, "data_epochs": 0, "train_steps": 20, "checkpoint_every_steps": 10}
        self.train("whole", **settings)
        environment = {**os.environ, "SLIP_TEST_FAULT": "reduce:14:0:kill"}
        done = subprocess.run(command("train", "--device", DEVICE, "--config", self.config("cut", {"log_dir": self.folder / "cut", **settings})),
                              cwd=ROOT, capture_output=True, env=environment, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        os.rename(dump, self.folder / "elsewhere")
        self.train("cut", "--resume", "auto", **{**settings, "data_features": self.folder / "elsewhere"})
        self.assert_same("whole", "cut")


class Decoding(Offline):
    """eval.prompts without data.tokens: the target runs for the evaluations, and training does not notice."""

    def setUp(self):
        super().setUp()
        prompts = write_shard(self.folder / "prompts.h5", documents([5, 9, 17, 3]), 256, 255)
        self.prompts = {"eval_prompts": prompts, "eval_max_new": 10, "eval_every_steps": 4}
        self.features = self.dump()

    def decoded(self, name):
        return [(e["step"], e["decoded"]["histogram"], e["decoded"]["parity"]["different"]) for e in self.metrics(name, ["step", "decoded"], "eval.jsonl")]

    def test_training_does_not_notice(self):
        self.train("bare", data_features=self.features)
        self.train("one", data_features=self.features, **self.prompts)
        self.assert_same("bare", "one")
        self.train("online", data_tokens=self.tokens, **self.prompts)
        self.assert_same("online", "one")
        self.assertEqual(self.decoded("one"), self.decoded("online"))
        self.assertEqual([e[0] for e in self.decoded("one")], [0, 4, 8])
        self.assertEqual({e[2] for e in self.decoded("one")}, {0})
        # Of three ranks one is the target's: the others train as two.
        self.train("two", ranks=2, data_features=self.features)
        done = self.train("three", ranks=3, data_features=self.features, **self.prompts)
        self.assertIn("1 target rank is there for eval.prompts alone", done.err)
        self.assert_same("two", "three")
        self.assertEqual(self.decoded("three"), self.decoded("one"))
        plan = json.loads((self.folder / "three/plan.json").read_text())
        self.assertEqual([r["role"] for r in plan["rank"]], ["drafter", "drafter", "target"])
        self.assertIn("cache.target", plan["rank"][2]["memory"])
        self.assertNotIn("cache.target", plan["rank"][0]["memory"])

    def test_a_rank_must_run_the_target(self):
        done = self.train("run", code=2, ranks=2, data_features=self.features, roles_targets=0, roles_drafters=2, **self.prompts)
        self.assertIn("eval.prompts cannot be decoded", done.err)


class Refused(Offline):
    def refused(self, *parts, code=3, **settings):
        done = self.train("bad", code=code, **settings)
        for part in parts:
            self.assertIn(str(part), done.err.splitlines()[-1], done)
        shutil.rmtree(self.folder / "bad", ignore_errors=True)

    def test_shards_that_do_not_fit(self):
        dump = self.dump()
        self.refused("taps is [0, 2], this run has [1, 2]", drafter_config=self.other_drafter(), data_features=dump)
        self.refused("architecture is qwen3, this run has llama", "target_fingerprint", target_path=GOLDEN / "tiny-llama", data_features=dump)
        other = self.dump("other", data_seed=6)
        self.refused("seed is 6", data_features=f"{dump},{other}")
        shutil.copytree(dump, self.folder / "copy")
        self.refused("document", "as well", data_features=f"{dump},{self.folder / 'copy'}")
        self.refused("names no feature shard", data_features=dump / "all.h5")
        self.refused("eval.tokens", code=2, data_features=dump, eval_tokens=self.heldout)
        changed = write_shard(self.folder / "changed.h5", [([(t + 1) % 255 for t in i], m) for i, m in documents(LENGTHS * 3)], 256, 255)
        self.refused("input_ids or loss_mask are not those", self.folder / "dump", data_tokens=changed, data_features=dump)

    def other_drafter(self):
        path = self.folder / "other.json"
        path.write_text(json.dumps({**DRAFTER, "dflash_config": {**DRAFTER["dflash_config"], "target_layer_ids": [1, 2]}}))
        return path

    def test_broken_shards(self):
        dump = self.dump()
        path = self.shards(dump)[0]
        data = path.read_bytes()
        with h5py.File(path) as f:
            place, documents_there = f["features"].id.get_chunk_info(0).byte_offset, len(f["document_ids"])
        self.assertGreater(documents_there, 1)
        path.write_bytes(data[:place + 9] + bytes([data[place + 9] ^ 1]) + data[place + 10:])
        self.refused(path, "features", "document 0", "checksum", data_features=dump)
        path.write_bytes(data[:-50])
        self.refused(path, len(data) - 50, len(data), data_features=dump)
        path.unlink()
        self.refused(path, "listed", "missing", data_features=dump)


class WhileTraining(Offline):
    def contents(self, folder):
        found = {}
        for path in self.shards(folder):
            with h5py.File(path) as f:
                at, raw = f["feature_offsets"][:], f["features"][...]
                for d, i in enumerate(f["document_ids"][:]):
                    self.assertNotIn(i, found)
                    found[int(i)] = raw[at[d]:at[d + 1]].tobytes()
        return found

    def test_the_same_features_as_from_dump(self):
        whole = self.contents(self.dump("whole"))
        self.train("plain", data_tokens=self.tokens, train_steps=5)
        for ranks, roles in ((None, {}), (4, {"roles_targets": 2, "roles_drafters": 2})):
            with self.subTest(ranks):
                name = f"with{ranks}"
                folder = self.folder / f"beside{ranks}"
                beside = {"data_tokens": self.tokens, "dump_dir": folder, "dump_shard_bytes": 120000}
                self.train(name, ranks=ranks, train_steps=5, **beside, **roles)
                if ranks is None:
                    self.assert_same("plain", name)
                self.assertGreaterEqual(self.metrics(name, ["dump_wait_s"])[0]["dump_wait_s"], 0)
                there = self.contents(folder)
                self.assertGreaterEqual(len(there), 15)  # the documents of 15 rows, and what was read ahead
                self.assertLess(len(there), len(whole))
                self.assertFalse(json.loads((folder / "manifest.json").read_text())["complete"])
                for i, features in there.items():
                    self.assertEqual(features, whole[i])
                kept = {p: p.stat().st_mtime_ns for p in self.shards(folder)}
                self.dump(f"beside{ranks}")  # goes on with the rest
                self.assertEqual(self.contents(folder), whole)
                self.assertEqual({p: p.stat().st_mtime_ns for p in kept}, kept)

    def test_resumed(self):
        folder = self.folder / "dumped"
        settings = {"data_tokens": self.tokens, "dump_dir": folder, "dump_shard_bytes": 120000, "checkpoint_every_steps": 4}
        environment = {**os.environ, "SLIP_TEST_FAULT": "reduce:6:0:kill"}
        subprocess.run(command("train", "--device", DEVICE, "--config", self.config("run", {"log_dir": self.folder / "run", **settings})), cwd=ROOT,
                       capture_output=True, env=environment, timeout=60)
        self.train("run", "--resume", "auto", **settings)
        whole = self.contents(self.dump("whole"))
        there = self.contents(folder)
        self.assertGreater(len(there), 15)
        for i, features in there.items():
            self.assertEqual(features, whole[i])


if __name__ == "__main__":
    unittest.main()
