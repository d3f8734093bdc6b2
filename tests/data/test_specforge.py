"""data/specforge: .ckpt files to hs_*.safetensors and back, the same bits; nothing of a pickle is executed. Where a Python with torch is
found (this one, the first on PATH, or SLIP_TORCH_PYTHON), torch reads what is written here and writes what is read here."""
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import pickle
import pickletools
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
loader = importlib.machinery.SourceFileLoader("specforge", str(ROOT / "data/specforge"))
specforge = importlib.util.module_from_spec(importlib.util.spec_from_loader("specforge", loader))
loader.exec_module(specforge)


def run(*arguments):
    return subprocess.run([sys.executable, ROOT / "data/specforge", *map(str, arguments)], capture_output=True, text=True)


# Run by the Python that has torch: prints what torch.load finds in the files of a folder; then writes others, as SpecForge does.
WITH_TORCH = """
import gzip, json, pathlib, sys, torch
found = {}
for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.ckpt")):
    sample = torch.load(path, weights_only=True)
    found[path.name] = {n: [str(t.dtype), list(t.shape), t.contiguous().view(torch.int16 if t.dtype == torch.bfloat16 else t.dtype).flatten().tolist()]
                        for n, t in sample.items()}
print(json.dumps({"version": torch.__version__, "found": found}))
out = pathlib.Path(sys.argv[2]) / "rows_0-2000"
out.mkdir(parents=True)
for i, length in enumerate((6, 1, 3)):
    bits = torch.arange(length * 24, dtype=torch.int16).reshape(1, length, 24) * 397
    wide = torch.zeros(1, length, 30, dtype=torch.bfloat16)
    wide[:, :, 3:27] = bits.view(torch.bfloat16)
    states = wide[:, :, 3:27] if i == 0 else bits.view(torch.bfloat16)  # a part of a larger storage
    sample = {"input_ids": torch.arange(length) + i, "loss_mask": torch.ones(length, dtype=torch.int64), "hidden_states": states,
              "target_last_hidden_states": torch.randn(1, length, 8).to(torch.bfloat16)}
    with (gzip.open(out / f"data_{i}.ckpt.gz", "wb") if i == 2 else open(out / f"data_{i}.ckpt", "wb")) as f:
        torch.save(sample, f)
"""


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="slip-test-"))
        self.addCleanup(shutil.rmtree, self.folder)
        rng = np.random.default_rng(1)
        self.samples = {}
        for i, length in ((0, 5), (7, 1), (2001, 9)):
            self.samples[i] = {"input_ids": rng.integers(0, 99, length), "loss_mask": rng.integers(0, 2, length),
                               "hidden_states": rng.integers(0, 2 ** 16, (1, length, 3 * 8)).astype("<u2")}
            specforge.write_ckpt(self.folder / "ckpt" / f"rows_{i // 2000 * 2000}-{i // 2000 * 2000 + 2000}" / f"data_{i}.ckpt",
                                 {n: (v, "BFloat16Storage" if n == "hidden_states" else "LongStorage") for n, v in self.samples[i].items()})

    def test_there_and_back(self):
        done = run("to-safetensors", self.folder / "ckpt", self.folder / "hs", "--taps", 3)
        self.assertEqual(done.returncode, 0, done.stderr)
        for i, s in self.samples.items():
            t = specforge.read_safetensors(self.folder / "hs/hidden_states" / f"hs_{i}.safetensors")
            np.testing.assert_array_equal(t["token_ids"], s["input_ids"])
            self.assertEqual(t["hidden_states"].shape, (len(s["input_ids"]), 4, 8))
            np.testing.assert_array_equal(t["hidden_states"][:, :3].reshape(1, -1, 24), s["hidden_states"])
            self.assertFalse(t["hidden_states"][:, 3].any())
        self.assertEqual(json.loads((self.folder / "hs/conversion.json").read_text())["layers"], 3)
        done = run("to-ckpt", self.folder / "hs", self.folder / "again")
        self.assertEqual(done.returncode, 0, done.stderr)
        for a in (self.folder / "ckpt").rglob("*.ckpt"):
            b = self.folder / "again" / a.relative_to(self.folder / "ckpt")
            self.assertEqual(a.read_bytes().count(b"data.pkl"), b.read_bytes().count(b"data.pkl"))
            for name, (value, dtype) in specforge.read_ckpt(a).items():
                np.testing.assert_array_equal(specforge.read_ckpt(b)[name][0], value)

    def test_the_pickle_holds_what_torch_writes(self):
        path = next((self.folder / "ckpt").rglob("data_0.ckpt"))
        with zipfile.ZipFile(path) as z:
            names = z.namelist()
            self.assertTrue(all(i.compress_type == zipfile.ZIP_STORED for i in z.infolist()))
            ops = [(o.name, a) for o, a, _ in pickletools.genops(z.read("data/data.pkl"))]
        self.assertIn("data/data/2", names)
        self.assertEqual({a for o, a in ops if o == "GLOBAL"},
                         {"torch._utils _rebuild_tensor_v2", "torch LongStorage", "torch BFloat16Storage", "collections OrderedDict"})
        self.assertEqual([o for o, _ in ops].count("BINPERSID"), 3)

    def test_what_is_not_expected_is_refused(self):
        class Evil:
            def __reduce__(self):
                return (print, ("executed",))
        path = self.folder / "evil" / "data_0.ckpt"
        path.parent.mkdir()
        with zipfile.ZipFile(path, "w") as z:
            z.writestr("data/data.pkl", pickle.dumps({"input_ids": Evil()}, 2))
        done = run("to-safetensors", self.folder / "evil", self.folder / "hs", "--taps", 3)
        self.assertNotEqual(done.returncode, 0)
        self.assertNotIn("executed", done.stdout)
        self.assertIn("not expected", done.stderr)
        done = run("to-safetensors", self.folder / "ckpt", self.folder / "hs", "--taps", 5)
        self.assertIn("do not fit 5 layers", done.stderr)

    def test_torch_reads_and_writes_the_same(self):
        for python in filter(None, (os.environ.get("SLIP_TORCH_PYTHON"), sys.executable, shutil.which("python3"))):
            if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0:
                break
        else:
            self.skipTest("no Python with torch; SLIP_TORCH_PYTHON names one")
        done = subprocess.run([python, "-c", WITH_TORCH, self.folder / "ckpt", self.folder / "torch"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = json.loads(done.stdout)
        self.assertEqual(sorted(said["found"]), sorted(f"data_{i}.ckpt" for i in self.samples))
        for i, s in self.samples.items():
            for name, value in s.items():
                signed = value.view("<i2") if value.dtype == np.uint16 else value
                dtype = "torch.bfloat16" if name == "hidden_states" else "torch.int64"
                self.assertEqual(said["found"][f"data_{i}.ckpt"][name], [dtype, list(value.shape), signed.ravel().tolist()])
        done = run("to-safetensors", self.folder / "torch", self.folder / "hs", "--taps", 3)
        self.assertEqual(done.returncode, 0, done.stderr)
        for i, length in enumerate((6, 1, 3)):
            t = specforge.read_safetensors(self.folder / "hs/hidden_states" / f"hs_{i}.safetensors")
            bits = (np.arange(length * 24, dtype=np.int16) * np.int16(397)).view("<u2").reshape(length, 3, 8)
            np.testing.assert_array_equal(t["hidden_states"][:, :3], bits)
            np.testing.assert_array_equal(t["token_ids"], np.arange(length) + i)
        print(f"with torch {said['version']}", file=sys.stderr)


unittest.main(verbosity=2)
