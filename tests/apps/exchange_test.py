"""`slipstream exchange` and data/specforge: a dump to the files of other trainers and back, the same bits."""
import json
import pathlib
import subprocess
import sys
import unittest

import dump_test
from inspect_case import read_tensors, write_tensors
from program import GOLDEN, ROOT, run


class Exchange(dump_test.Dump):
    def setUp(self):
        super().setUp()
        (self.folder / "drafter.json").write_text(json.dumps(self.drafter((0, 2, 3))))
        self.dump()
        self.files = self.folder / "speculators"
        done = run("exchange", "--dump", self.folder / "dump", "--out", self.files)
        self.assertEqual(done.code, 0, done)

    def bring_in(self, name, *options, code=0, source=None):
        done = run("exchange", "--in", source or self.files, "--tokens", self.tokens, "--target", GOLDEN / "tiny-qwen3", "--dump", self.folder / name, *options)
        self.assertEqual(done.code, code, done)
        return done

    def test_there_and_back(self):
        whole = self.contents()
        for i, (ids, mask, features) in whole.items():
            t = read_tensors(self.files / "hidden_states" / f"hs_{i}.safetensors")
            self.assertEqual(t["hidden_states"], ("BF16", [len(ids), 3, 64], features))
            self.assertEqual((t["token_ids"][:2], t["loss_mask"][:2]), (("I64", [len(ids)]), ("I64", [len(ids)])))
            self.assertEqual([int.from_bytes(t["token_ids"][2][8 * j:8 * j + 8], "little") for j in range(len(ids))], ids)
        record = json.loads((self.files / "conversion.json").read_text())
        self.assertEqual((record["taps"], record["layer_ids_plus_one"]), ([0, 2, 3], [1, 3]))
        self.bring_in("again", "--layer-ids", "1,3", "--keep-last", "--shard-bytes", "150000")
        self.assertGreater(len(self.shards("again")), 1)
        self.assertEqual(self.contents("again"), whole)
        # the drafter's layers alone: what a dump with these taps holds
        self.bring_in("two", "--layer-ids", "1,3")
        (self.folder / "drafter.json").write_text(json.dumps(self.drafter()))
        self.dump(dump_dir=self.folder / "direct")
        self.assertEqual(self.contents("two"), self.contents("direct"))
        self.assertEqual(self.manifest("two")["dump"]["taps"], [0, 2])
        self.assertEqual(self.manifest("two")["dump"]["target_fingerprint"], self.manifest("direct")["dump"]["target_fingerprint"])
        checked = run("inspect", "--verify", self.folder / "two")
        self.assertEqual(checked.code, 0, checked)

    def test_specforge(self):
        ckpt, back = self.folder / "ckpt", self.folder / "back"
        for arguments in (("to-ckpt", self.files, ckpt), ("to-safetensors", ckpt, back, "--taps", "2")):
            done = subprocess.run([sys.executable, ROOT / "data/specforge", *arguments], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((ckpt / "rows_0-2000" / "data_5.ckpt").exists())
        self.bring_in("two", "--layer-ids", "1,3", source=back)
        (self.folder / "drafter.json").write_text(json.dumps(self.drafter()))
        self.dump(dump_dir=self.folder / "direct")
        self.assertEqual(self.contents("two"), self.contents("direct"))

    def test_what_does_not_fit(self):
        def refused(code, *parts, **how):
            line = self.bring_in("bad", *how.pop("options"), code=code, **how).err.splitlines()[-1]
            for part in parts:
                self.assertIn(part, line)
        refused(2, "--layer-ids", options=("--layer-ids", "0,2"))
        refused(2, "past the 4 layers", options=("--layer-ids", "1,5"))
        refused(3, "hidden_states is BF16 [20, 3, 64], BF16 [20, 2, 64] is expected", options=("--layer-ids", "1"))
        path = self.files / "hidden_states" / "hs_3.safetensors"
        tensors = read_tensors(path)
        kind, shape, data = tensors["token_ids"]
        write_tensors(path, {**tensors, "token_ids": (kind, shape, bytes([data[0] ^ 1]) + data[1:])})
        refused(3, "hs_3.safetensors", "token_ids[0]", options=("--layer-ids", "1,3"))
        pathlib.Path(str(path) + ".lock").touch()
        refused(3, "still being written", options=("--layer-ids", "1,3"))
        (self.folder / "drafter.json").write_text(json.dumps(self.drafter()))
        self.dump(dump_dir=self.folder / "two")
        done = run("exchange", "--dump", self.folder / "two", "--out", self.folder / "no")
        self.assertEqual(done.code, 2, done)
        self.assertIn("dump with tap 3 at the end", done.err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
