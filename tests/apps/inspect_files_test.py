"""`slipstream inspect` of files as a user calls it: good ones, broken ones, and numbers against h5py and numpy."""
import collections
import math
import os
import struct
import unittest

import h5py
import numpy as np

from inspect_case import GOLDEN, NUMPY, TINY, Inspect, numbers, read_tensors, write_tensors
from program import run


class Usage(Inspect):
    def test_usage(self):
        self.assertIn("PATH...", run("inspect", "--help").out)
        self.assertIn("which path", self.refused(code=2))
        self.assertIn("--tensors", self.refused("--tensors=-2", TINY, code=2))
        self.assertIn("verity", self.refused("--verity", TINY, code=2))

    def test_none_of_the_kinds(self):
        self.assertIn("no such file", self.refused("/nowhere"))
        self.assertIn("neither a token or feature shard (HDF5) nor a safetensors file", self.refused("README.md"))
        empty = os.path.join(self.folder, "empty")
        open(empty, "w").close()
        self.assertIn("nor a safetensors file", self.refused(empty))
        self.assertIn("metrics.jsonl", self.refused("src"))
        found = self.facts("README.md", code=3)
        self.assertIsNone(found["kind"])
        self.assertIn("nor a safetensors", found["problems"][0])

    def test_a_bad_path_does_not_hide_the_others(self):
        paths = (TINY + "/prompts.h5", "/nowhere", GOLDEN + "/tiny-llama/")
        self.assertEqual([f["kind"] for f in self.facts(*paths, code=3)], ["token shard", None, "target"])
        text = self.text(*paths, code=3)
        self.assertIn("prompts.h5: token shard\n", text)
        self.assertIn("tests/golden/tiny-llama: target\n", text)


class Tokens(Inspect):
    def test_values(self):
        for name in ("train", "heldout", "prompts"):
            path = f"{TINY}/{name}.h5"
            found = self.facts(path)
            with h5py.File(path) as f:
                ids, mask, at = (f[n][:] for n in ("input_ids", "loss_mask", "doc_offsets"))
                names, family = f["family_names"].asstr()[:], f["family"][:]
                attributes = {k: v.decode() if isinstance(v, bytes) else int(v) for k, v in f.attrs.items()}
                table, to = f["token_bytes"][:].tobytes(), f["token_byte_offsets"][:]
            lengths = sorted(np.diff(at).tolist())
            pairs = [bool(np.any(mask[a:b - 1] & mask[a + 1:b])) for a, b in zip(at, at[1:])]
            self.assertEqual(found["problems"], [])
            self.assertEqual((found["documents"], found["tokens"], found["supervised_tokens"]), (len(at) - 1, len(ids), mask.sum()))
            self.assertAlmostEqual(found["supervised_share"], mask.mean(), 12)
            self.assertEqual(found["documents_without_supervised_pair"], pairs.count(False))
            self.assertEqual(found["attributes"], attributes)
            self.assertEqual(found["mask_tokens_in_text"], np.count_nonzero(ids == attributes["mask_token_id"]))
            self.assertEqual(found["families"], dict(collections.Counter(names[i] for i in family)))
            want = {f"p{p}": lengths[math.ceil(p * len(lengths) / 100) - 1] for p in (10, 50, 90, 99)}
            self.assertEqual({k: found["lengths"][k] for k in want}, want)
            self.assertEqual((found["lengths"]["min"], found["lengths"]["max"]), (lengths[0], lengths[-1]))
            self.assertAlmostEqual(found["lengths"]["mean"], np.mean(lengths), 9)
            parts = found["first_document"]["parts"]
            want = b"".join(table[to[i]:to[i + 1]] for i in ids[:at[1]]).decode()
            self.assertEqual("".join(p["text"] for p in parts), want)
            changes = np.count_nonzero(np.diff(mask[:at[1]].astype(int)))
            self.assertEqual([p["supervised"] for p in parts], [bool(mask[0] ^ (i & 1)) for i in range(changes + 1)])

    def test_text(self):
        text = self.text("--verify", TINY + "/heldout.h5")
        self.assertIn("128, 0 of them without two consecutive supervised tokens", text)
        self.assertIn("28040, supervised 11895 (42.4 %)", text)
        self.assertIn("<|im_start|>assistant\n    [[", text)
        self.assertIn("verified", text)
        self.assertIn("tokenizer = bytes", text)

    def changed(self, name, place, value):
        path = self.copy(TINY + "/heldout.h5")
        with h5py.File(path, "r+") as f:
            f[name][place] = value
        return path

    def test_verify_finds_a_changed_token(self):
        path = self.changed("input_ids", 5, 65)
        self.facts(path)
        found = self.facts("--verify", path, code=3)
        self.assertFalse(found["verified"])
        self.assertIn("crc32 is declared as", found["problems"][0])

    def test_verify_finds_an_id_outside_the_vocabulary(self):
        path = self.changed("input_ids", 5, 272)
        text = self.text("--verify", path, code=3)
        self.assertIn("document 0, position 5 has token id 272, 0 to 271 is expected", text)
        self.assertIn("<272>", text)

    def test_verify_counts_mask_tokens(self):
        path = self.copy(TINY + "/heldout.h5")
        with h5py.File(path, "r+") as f:
            f.attrs["mask_tokens_in_text"] = np.int64(3)
        self.assertIn("mask_tokens_in_text is 3, input_ids has 0", self.facts("--verify", path, code=3)["problems"][0])

    def test_refused(self):
        self.assertIn("document 0, position 7 is 2", self.refused(self.changed("loss_mask", 7, 2)))
        other = os.path.join(self.folder, "other.h5")
        with h5py.File(other, "w") as f:
            f["x"] = [1, 2]
        self.assertIn("attribute format is missing", self.refused(other))
        with open(TINY + "/prompts.h5", "rb") as f:
            cut = f.read()[:-3000]
        with open(other, "wb") as f:
            f.write(cut)
        self.assertIn("cannot be opened as HDF5", self.refused(other))
        os.rename(other, other + ".partial")
        self.assertIn("unfinished", self.refused(other + ".partial"))

    def test_without_a_decode_table(self):
        path = self.copy(TINY + "/heldout.h5")
        with h5py.File(path, "r+") as f:
            del f["token_bytes"], f["token_byte_offsets"], f["family"]
            ids, mask = f["input_ids"][:], f["loss_mask"][:]
        found = self.facts(path)
        self.assertIsNone(found["families"])
        first = int(np.argmax(mask))
        self.assertEqual(found["first_document"]["parts"][0]["text"].split(), [str(i) for i in ids[:first]])


class Tensors(Inspect):
    def compare(self, row, dtype, data):
        values = numbers(dtype, data)
        finite = values[np.isfinite(values)]
        self.assertEqual((row["nan"], row["inf"]), (np.isnan(values).sum(), np.isinf(values).sum()), row)
        for key, want in (("mean", finite.mean()), ("deviation", finite.std()), ("min", finite.min()), ("max", finite.max())):
            self.assertLessEqual(abs(row[key] - want), 1e-9 * max(1, abs(finite).max()), (row, key, want))

    def test_values(self):
        path = GOLDEN + "/own-noncausal.safetensors"
        want, found = read_tensors(path), self.facts(path)
        self.assertEqual(found["tensors"], len(want))
        self.assertEqual(found["parameters"], sum(math.prod(s) for _, s, _ in want.values()))
        self.assertEqual(found["tensor_bytes"], sum(len(d) for _, _, d in want.values()))
        self.assertEqual(found["dtypes"], dict(collections.Counter(d for d, _, _ in want.values())))
        self.assertIn("case", found["metadata"])
        self.assertEqual({r["name"] for r in found["table"]}, set(want))
        for row in found["table"]:
            dtype, shape, data = want[row["name"]]
            self.assertEqual((row["dtype"], row["shape"]), (dtype, shape))
            self.compare(row, dtype, data)

    def test_every_dtype_and_values_that_are_not_finite(self):
        path = os.path.join(self.folder, "all.safetensors")
        x = np.random.default_rng(1).normal(3, 2, 300000)  # more than one piece
        tensors = {"t.10": ("F64", [len(x)], x.tobytes()), "t.9": ("F16", [3], np.array([1.5, np.inf, -2], "<f2").tobytes())}
        tensors["nan"] = ("F32", [2, 2], np.array([1, np.nan, -np.inf, 4], "<f4").tobytes())
        tensors["none"] = ("F32", [1], np.array([np.nan], "<f4").tobytes())
        for name, values in (("I64", [-5, 7]), ("I32", [-5, 7]), ("I8", [-5, 7]), ("U8", [250, 7]), ("U64", [250, 7]), ("BOOL", [0, 1])):
            tensors[name] = (name, [2], np.array(values, NUMPY[name]).tobytes())
        tensors["f8"] = ("F8_E4M3", [2], b"ab")
        tensors["empty"] = ("F32", [0, 4], b"")
        write_tensors(path, tensors)
        found = self.facts(path)
        rows = {r["name"]: r for r in found["table"]}
        self.assertEqual([n for n in rows if n[0] == "t"], ["t.9", "t.10"])
        self.assertEqual((found["nan"], found["inf"]), (2, 2))
        self.assertNotIn("mean", rows["f8"])
        self.assertIsNone(rows["none"]["mean"])
        self.assertIsNone(rows["empty"]["max"])
        for name in set(rows) - {"f8", "none", "empty"}:
            self.compare(rows[name], tensors[name][0], tensors[name][2])
        self.assertIn("2 NaN, 2 infinite in 12 tensors read", self.text(path))

    def test_rows(self):
        path = GOLDEN + "/dflash-full.safetensors"
        everything = self.facts(path)
        for rows, verify, read in ((3, (), 3), (0, (), 0), (0, ("--verify",), everything["tensors"])):
            found = self.facts("--tensors", str(rows), *verify, path)
            self.assertEqual((found["table"], found["tensors_read"]), (everything["table"][:rows], read))
            self.assertEqual(found["parameters"], everything["parameters"])
        self.assertIn(f"and {everything['tensors'] - 3} more", self.text("--tensors", "3", path))

    def test_lying_headers(self):
        path = os.path.join(self.folder, "x.safetensors")
        write_tensors(path, {"a": ("F32", [2], b"x" * 8)})
        with open(path, "rb") as f:
            good = f.read()
        for what, data in (("was cut short", good[:-1]), ("has trailing bytes", good + b"x"), ("needs 16 bytes", good.replace(b"[2]", b"[4]")),
                           ("declares a header", struct.pack("<Q", 1 << 40) + good[8:]), ("at least 8", b"abc"),
                           ("not JSON", good.replace(b'{"a"', b'{(a"'))):
            with open(path, "wb") as f:
                f.write(data)
            complaint = self.refused(path)
            self.assertIn(what, complaint)
            self.assertIn(path, complaint)


unittest.main(verbosity=2)
