"""Weights in data.tokens: what an epoch draws, on any number of ranks, after a resume, from feature shards; and who says what was drawn."""
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

import h5py

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from offline_test import DEVICE, LENGTHS, Offline, command, documents, run, write_shard  # noqa: E402
from program import ROOT  # noqa: E402

EXACT = ["step", "epoch", "rows", "tokens", "labels", "draft_positions", "lr"]
A, B = 10, 12  # documents


class Mixture(Offline):
    def setUp(self):
        super().setUp()
        self.a = write_shard(self.folder / "a.h5", documents(LENGTHS[:A]), 256, 255)
        self.b = write_shard(self.folder / "b.h5", documents(LENGTHS[:B][::-1]), 256, 255)
        self.mixture = f"{self.a}@2, {self.folder}/b*.h5@0.5"

    def drawn(self, name):
        """Per epoch: documents of each source."""
        out = {}
        for m in self.metrics(name, ["epoch", "sources"]):
            sums = out.setdefault(m["epoch"], [0] * len(m["sources"]["documents"]))
            for i, n in enumerate(m["sources"]["documents"]):
                sums[i] += n
        return list(out.values())

    def counts(self, name):
        """What is the same on any number of ranks."""
        return [{**{k: m[k] for k in EXACT}, **{k: m["sources"][k] for k in ("documents", "tokens", "labels")}}
                for m in self.metrics(name, EXACT + ["sources"])]

    def test_weights_of_one_change_nothing(self):
        self.train("plain", data_tokens=f"{self.a},{self.b}")
        self.train("ones", data_tokens=f"{self.a}@1,{self.b}@1.0")
        self.assert_same("plain", "ones")
        for m in self.metrics("ones", ["tokens", "labels", "loss", "sources"]):
            self.assertEqual(sum(m["sources"]["tokens"]), m["tokens"])
            self.assertEqual(sum(m["sources"]["labels"]), m["labels"])
            losses = [x for x in m["sources"]["loss"] if x is not None]
            self.assertTrue(min(losses) - 1e-9 <= m["loss"] <= max(losses) + 1e-9)
        self.train("single", data_tokens=self.a)
        self.assertEqual(self.metrics("single", ["sources"])[0], {})

    def test_what_an_epoch_draws(self):
        settings = {"data_tokens": self.mixture, "train_steps": 0, "data_epochs": 4}
        done = self.train("one", **settings)
        self.assertEqual(self.drawn("one"), [[2 * A, B // 2]] * 4)
        steps = len(self.metrics("one"))
        epoch = json.loads((self.folder / "one/plan.json").read_text())["epoch"]
        self.assertEqual((epoch["documents"], epoch["rows"]), (2 * A + B // 2, sum(m["rows"] for m in self.metrics("one", ["epoch", "rows"]) if m["epoch"] == 0)))
        self.assertEqual([(s["weight"], s["documents_there"], s["documents"]) for s in epoch["sources"]], [(2, A, 2 * A), (0.5, B, B // 2)])
        self.assertEqual(epoch["sources"][0]["tokens"], 2 * sum(LENGTHS[:A]))
        said = rf"an epoch: {2 * A + B // 2} documents, {epoch['tokens']} tokens in {epoch['rows']} rows"
        self.assertRegex(done.err, said)
        self.assertRegex(done.err, rf"(?s)trained by source.*\n\s+{4 * 2 * A} +{4 * 2 * sum(LENGTHS[:A])} .*a\.h5 \(weight 2\)\n\s+{4 * B // 2} .*\(weight 0\.5\)")
        planned = run("plan", "--config", self.folder / "one.ini", "--ranks", 2)
        self.assertRegex(planned.out, said)
        self.assertRegex(planned.out, rf"b\*\.h5 \(weight 0\.5\), {B // 2} documents of {B}")
        page = (self.folder / "one/report.html").read_text()
        shown = json.loads(re.search(r'id="runs">(.*?)</script>', page, re.S)[1])[0]["sources"]
        self.assertEqual([s["documents"] for s in shown], [4 * 2 * A, 4 * B // 2])
        self.assertTrue(all(0 < s["loss"] < 50 and s["acceptance_length"] >= 1 for s in shown), shown)

        self.train("three", ranks=3, roles_targets=1, roles_drafters=2, **settings)
        self.assertEqual(self.counts("three"), self.counts("one"))
        self.assertEqual(len(self.metrics("three")), steps)

    def test_resumed_on_other_ranks(self):
        settings = {"data_tokens": self.mixture, "train_steps": 16, "checkpoint_every_steps": 5, "checkpoint_background": "false"}
        self.train("whole", **settings)
        self.assertGreater(len(self.drawn("whole")), 2)
        environment = {**os.environ, "SLIP_TEST_FAULT": "reduce:8:0:kill"}
        done = subprocess.run(command("train", "--device", DEVICE, "--config", self.config("cut", {"log_dir": self.folder / "cut", **settings})),
                              cwd=ROOT, capture_output=True, env=environment, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        for other, found in ((f"{self.a}@2,{self.b}@0.75", "0.75 for 12 documents"), (f"{self.a},{self.b}", "says 1")):
            done = self.train("cut", "--resume", "auto", code=2, **{**settings, "data_tokens": other})
            self.assertEqual(len(done.err.splitlines()), 1, done)
            self.assertIn("weights of data.tokens: the checkpoint has 2 for 10 documents, 0.5 for 12 documents", done.err)
            self.assertIn(found, done.err)
        os.rename(self.folder / "a.h5", self.folder / "moved.h5")  # files may move, weights stay
        again = {**settings, "data_tokens": self.mixture.replace("a.h5", "moved.h5")}
        self.train("cut", "--resume", "auto", ranks=3, roles_targets=1, roles_drafters=2, **again)
        self.assertEqual(self.counts("cut"), self.counts("whole"))
        for got, want in zip(self.metrics("cut", ["loss"]), self.metrics("whole", ["loss"]), strict=True):
            self.assertLess(abs(got["loss"] / want["loss"] - 1), 1e-4)

    def test_dumps(self):
        dump = self.dump(data_tokens=self.mixture)
        ids = []
        for path in self.shards(dump):
            with h5py.File(path) as f:
                ids += f["document_ids"][:].tolist()
        self.assertEqual(sorted(ids), list(range(A + B)))  # once, whatever the weight
        self.train("online", data_tokens=self.mixture)
        done = self.train("disk", data_tokens=self.mixture, data_features=dump)
        found = re.search(r"(\d+) of (\d+) rows of the first epoch are read", done.err)
        self.assertEqual(found[1], found[2])
        self.assertEqual(self.counts("disk"), self.counts("online"))
        self.train("offline", data_features=f"{dump}@1.5", train_steps=0, data_epochs=2)
        self.assertEqual(self.drawn("offline"), [[(A + B) * 3 // 2]] * 2)
        done = self.train("both", code=2, data_tokens=self.mixture, data_features=f"{dump}@2")
        self.assertIn("data.features: weights belong to data.tokens", done.err)


if __name__ == "__main__":
    unittest.main()
