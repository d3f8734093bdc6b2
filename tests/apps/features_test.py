"""`features` on the tiny targets against values of another implementation; packed equals separate."""
import json
import unittest

import numpy as np

from program import GOLDEN, ON_GPU, Folder, hf, run, write_shard

VALUES = json.loads((GOLDEN / "target_golden.json").read_text())
IDS, CU = VALUES["input_ids"], VALUES["cu_seqlens"]
TARGETS = ("tiny-llama", "tiny-qwen3", "tiny-qwen3_5")
DOCUMENTS = [IDS[a:b] for a, b in zip(CU, CU[1:])]


class Features(Folder):
    def shard(self, name, documents):
        # a document without two supervised tokens is kept only among prompts: features are for all of them
        return write_shard(self.folder / name, [(d, [0] * len(d)) for d in documents], 256, 255, "--prompts")

    def features(self, target, shard, taps="0,1,2,3", *options):
        out = self.folder / "features.safetensors"
        done = run("features", "--target", GOLDEN / target, "--tokens", shard, "--taps", taps, "--out", out, *options)
        self.assertEqual(done.code, 0, done)
        tensors, _ = hf.read(out)
        self.assertEqual(list(tensors), ["features"])
        self.assertEqual(tensors["features"].dtype, np.float32)
        return tensors["features"]

    @unittest.skipUnless(ON_GPU, "the CPU computes in fp32")
    def test_bf16_is_near_fp32(self):
        shard = self.shard("both.h5", DOCUMENTS)
        for target in TARGETS:
            with self.subTest(target):
                want = self.features(target, shard).astype(np.float64)
                got = self.features(target, shard, "0,1,2,3", "--precision", "bf16").astype(np.float64)
                length = np.linalg.norm(want, axis=-1)
                self.assertLessEqual((np.linalg.norm(got - want, axis=-1) / length).max(), 2e-2)
                cosine = (got * want).sum(-1) / (length * np.linalg.norm(got, axis=-1))
                self.assertGreaterEqual(cosine.min(), 0.9995)

    def test_golden_values(self):
        shard = self.shard("both.h5", DOCUMENTS)
        for target in TARGETS:
            with self.subTest(target):
                got = self.features(target, shard)
                self.assertEqual(got.shape, (len(IDS), 4, 64))
                for layer, want in enumerate(VALUES["targets"][target]["layers"]):
                    np.testing.assert_allclose(got[VALUES["tokens"], layer, :3], want["first"], rtol=0, atol=2e-5)
                    rms = np.sqrt(np.mean(got[:, layer].astype(np.float64) ** 2))
                    self.assertAlmostEqual(rms, want["rms_all"], delta=1e-6)

    def test_packed_equals_separate(self):
        both = self.shard("both.h5", DOCUMENTS)
        parts = [self.shard(f"part{i}.h5", [d]) for i, d in enumerate(DOCUMENTS)]
        for target in TARGETS:
            got = self.features(target, both)
            apart = np.concatenate([self.features(target, p) for p in parts])
            np.testing.assert_allclose(got, apart, rtol=0, atol=1e-6)
            # several shards are one list of documents
            joined = self.features(target, ",".join(map(str, parts)))
            np.testing.assert_allclose(joined, apart, rtol=0, atol=1e-6)

    def test_taps_come_in_the_order_asked_for(self):
        shard = self.shard("both.h5", DOCUMENTS)
        got = self.features("tiny-qwen3", shard)
        np.testing.assert_allclose(self.features("tiny-qwen3", shard, "3,0"), got[:, [3, 0]], rtol=0, atol=1e-6)

    def test_refusals(self):
        shard = self.shard("both.h5", DOCUMENTS)
        long = self.shard("long.h5", [[1] * 600])
        other = write_shard(self.folder / "other.h5", [([1, 2, 3], [1, 1, 1])], 300, 255)
        out = self.folder / "features.safetensors"
        before = self.tree()
        for code, parts, changed in [
                (2, ["--taps", "4", "0..3"], {"--taps": "0,4"}), (2, ["--taps", "-1", "0..3"], {"--taps": "-1"}),
                (2, ["--taps", "1", "twice"], {"--taps": "1,1"}), (2, ["--taps", "1,x"], {"--taps": "1,x"}),
                (3, [str(long), "600", "512"], {"--tokens": long}), (3, [str(other), "300", "256"], {"--tokens": other}),
                (3, ["absent.h5"], {"--tokens": self.folder / "absent.h5"}),
                (3, ["absent", "no such folder"], {"--target": self.folder / "absent"}),
                (2, ["--precision", "fp8"], {"--precision": "fp8"}), (2, ["--device", "gpu"], {"--device": "gpu"})]:
            options = {"--target": GOLDEN / "tiny-qwen3", "--tokens": shard, "--taps": "0", "--out": out, **changed}
            done = run("features", *[x for pair in options.items() for x in pair])
            with self.subTest(changed):
                self.assertEqual((done.code, done.out, len(done.err.splitlines())), (code, "", 1), done)
                for part in parts:
                    self.assertIn(part, done.err)
                self.assertEqual(self.tree(), before)


unittest.main(verbosity=2)
