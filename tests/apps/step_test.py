"""`step` on every golden case: another implementation's loss, accuracy, hidden states and gradients."""
import json
import unittest

import numpy as np

from program import GOLDEN, ON_GPU, Folder, hf, run


def relative(got, want):
    """|got - want| / |want|, all elements together."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    return np.linalg.norm(got - want) / np.linalg.norm(want)


class Step(Folder):
    def step(self, case, *options):
        done = run("step", "--case", case, "--out", self.folder / "out.safetensors", *options)
        self.assertEqual(done.code, 0, done)
        return hf.read(self.folder / "out.safetensors")[0]

    def test_golden_cases(self):
        cases = sorted(GOLDEN.glob("*.safetensors"))
        self.assertGreaterEqual(len(cases), 6)
        for case in cases:
            with self.subTest(case.name):
                want, _ = hf.read(case)
                got = self.step(case)
                outputs = {n for n in want if n.startswith(("out.", "g."))}
                self.assertEqual(set(got), outputs)
                for name in outputs:
                    self.assertEqual((name, got[name].shape, got[name].dtype), (name, want[name].shape, np.float32))
                self.assertLessEqual(abs(got["out.loss"][0] / want["out.loss"][0] - 1), 1e-5)
                self.assertAlmostEqual(got["out.accuracy"][0], want["out.accuracy"][0], delta=1e-6)
                self.assertLessEqual(relative(got["out.draft_hidden"], want["out.draft_hidden"]), 1e-5)
                self.assertLessEqual(np.abs(got["out.draft_hidden"] - want["out.draft_hidden"]).max(), 1e-4)
                for name in sorted(n for n in outputs if n.startswith("g.")):
                    self.assertLessEqual(relative(got[name], want[name]), 1e-4, name)

    @unittest.skipUnless(ON_GPU, "the CPU computes in fp32")
    def test_golden_cases_in_bf16(self):
        for case in sorted(GOLDEN.glob("dflash-*.safetensors")):
            with self.subTest(case.name):
                want, _ = hf.read(case)
                got = self.step(case, "--precision", "bf16")
                self.assertLessEqual(abs(got["out.loss"][0] / want["out.loss"][0] - 1), 2e-2)
                for name in sorted(n for n in want if n.startswith("g.") or n == "out.draft_hidden"):
                    self.assertLessEqual(relative(got[name], want[name]), 2e-2, name)

    def test_accuracy_is_tested_above_zero(self):
        self.assertGreater(hf.read(GOLDEN / "dflash-trained.safetensors")[0]["out.accuracy"][0], 0.1)

    def test_order_of_anchors_changes_nothing(self):  # A12
        tensors, metadata = hf.read(GOLDEN / "dflash-sliding.safetensors")
        want = self.step(GOLDEN / "dflash-sliding.safetensors")
        anchors = tensors["in.anchors"]
        order = np.roll(np.arange(len(anchors))[::-1], 2)
        inputs = {n: x for n, x in tensors.items() if n.startswith(("in.", "w."))}
        inputs["in.anchors"] = anchors[order]
        half = [n for n in inputs if n.startswith("w.") or n in ("in.embed_tokens.weight", "in.lm_head.weight")]
        hf.write(str(self.folder / "case.safetensors"), inputs, half, **{"case": metadata["case"]})
        got = self.step(self.folder / "case.safetensors")
        self.assertLessEqual(abs(got["out.loss"][0] / want["out.loss"][0] - 1), 1e-6)
        block = json.loads(metadata["case"])["block_size"]
        blocks = want["out.draft_hidden"].reshape(len(anchors), block, -1)
        np.testing.assert_array_equal(got["out.draft_hidden"].reshape(blocks.shape), blocks[order])
        for name in (n for n in want if n.startswith("g.")):
            self.assertLessEqual(relative(got[name], want[name]), 1e-6, name)

    def refused(self, parts, *arguments, code=3):
        done = run("step", *arguments, "--out", self.folder / "out.safetensors")
        self.assertEqual((done.code, done.out, len(done.err.splitlines())), (code, "", 1), done)
        for part in parts:
            self.assertIn(part, done.err)
        self.assertFalse((self.folder / "out.safetensors").exists())

    def test_refusals(self):
        path = GOLDEN / "dflash-full.safetensors"
        tensors, metadata = hf.read(path)
        tensors = {n: x for n, x in tensors.items() if n.startswith(("in.", "w."))}
        half = [n for n in tensors if n.startswith("w.") or n in ("in.embed_tokens.weight", "in.lm_head.weight")]
        case = self.folder / "case.safetensors"

        def write(change_tensors=lambda t: None, **settings):
            changed = dict(tensors)
            change_tensors(changed)
            text = json.dumps({**json.loads(metadata["case"]), **settings})
            hf.write(str(case), changed, [n for n in half if n in changed], case=text)
            return "--case", case

        self.refused([str(case), "No such file"], "--case", case)
        self.refused(["--case"], code=2)
        self.refused(["w.fc.weight"], *write(lambda t: t.pop("w.fc.weight")))
        self.refused(["in.input_ids"], *write(lambda t: t.update({"in.input_ids": t["in.input_ids"][:-1]})))
        self.refused(["in.anchors", "40"], *write(lambda t: t.update({"in.anchors": np.array([40], np.int32)}), S=40))
        self.refused(["block_size", "0"], *write(block_size=0))
        self.refused(["mask_token_id", "256"], *write(mask_token_id=256))
        self.refused(["loss_type", "kl"], *write(loss_type="kl"))
        self.refused(["layer_types", "chunked"], *write(layer_types=["chunked", "chunked"]))
        self.refused(["--precision", "fp8"], *write(), "--precision", "fp8", code=2)
        cut = self.folder / "cut.safetensors"
        cut.write_bytes(path.read_bytes()[:-100])
        self.refused([str(cut), str(path.stat().st_size), str(path.stat().st_size - 100)], "--case", cut)


unittest.main(verbosity=2)
