"""`slipstream inspect` of feature shards and dumps: numbers against numpy, differences, the page in a browser."""
import json
import shutil
import subprocess
import unittest

import h5py
import numpy as np

from inspect_case import Inspect
from program import DRAFTER, GOLDEN, documents, run, write_config, write_shard

BROWSER = shutil.which("chromium")
LENGTHS = [20, 12, 30, 16, 39, 8, 25, 31]


class Dump(Inspect):
    def setUp(self):
        super().setUp()
        self.tokens = write_shard(self.folder / "train.h5", documents(LENGTHS), 256, 255)
        (self.folder / "drafter.json").write_text(json.dumps(DRAFTER))

    def dump(self, name, **changed):
        settings = {"target.path": GOLDEN / "tiny-qwen3", "drafter.config": self.folder / "drafter.json", "data.tokens": self.tokens,
                    "data.row_tokens": 64, "train.precision": "fp32", "dump.dir": self.folder / name, "dump.shard_bytes": 100000,
                    **{k.replace("_", ".", 1): v for k, v in changed.items()}}
        done = run("dump", "--device", "cpu", "--config", write_config(self.folder / "dump.ini", settings))
        self.assertEqual(done.code, 0, done)
        return self.folder / name

    def values(self, folder):
        """[tokens, taps, H] float64 of all shards, in the order of the documents' ids."""
        found = {}
        for path in sorted(folder.glob("features-*.h5")):
            with h5py.File(path) as f:
                raw, at = f["features"][...], f["feature_offsets"][:]
                found.update({int(i): raw[at[d]:at[d + 1]] for d, i in enumerate(f["document_ids"][:])})
        return np.concatenate([found[i] for i in sorted(found)]).astype(np.float64)


class Numbers(Dump):
    def test_statistics(self):
        folder = self.dump("dump")
        facts = self.facts("--verify", folder)
        self.assertEqual((facts["kind"], facts["complete"], facts["verified"], facts["problems"]), ("feature dump", True, True, []))
        self.assertEqual((facts["documents"], facts["tokens"], facts["shape"]), (8, sum(LENGTHS), [sum(LENGTHS), 2, 64]))
        x = self.values(folder)
        for k, tap in enumerate(facts["taps"]):
            v = x[:, k]
            norms = np.linalg.norm(v, axis=1)
            self.assertEqual((tap["layer"], tap["nan"], tap["inf"]), ([0, 2][k], 0, 0))
            self.assertAlmostEqual(tap["mean"], v.mean(), places=6)
            self.assertAlmostEqual(tap["deviation"], v.std(), places=5)
            self.assertEqual(tap["abs_max"], np.abs(v).max())
            self.assertAlmostEqual(tap["norms"]["max"], norms.max(), places=3)
            self.assertAlmostEqual(tap["norms"]["p50"], np.median(norms), delta=0.02 * np.median(norms))
            self.assertEqual(sum(tap["norms"]["histogram"]["counts"]), len(norms))
            self.assertEqual(sum(n for _, n in tap["magnitudes"]), v.size)
            rms = np.sqrt((v ** 2).mean(0))
            want = [int(c) for c in np.argsort(-rms, kind="stable") if rms[c] > 6 * np.sort(rms)[32]][:8]
            self.assertEqual([c["channel"] for c in tap["outliers"]], want)
        text = self.text(folder)
        for part in ("feature dump", "taps = [0,2]", "|max|", "[181, 2, 64] bfloat16"):
            self.assertIn(part, text)
        one = self.facts(folder / "features-000000.h5")
        self.assertEqual(one["kind"], "feature shard")
        self.assertEqual(self.facts(folder / "all.h5")["tokens"], sum(LENGTHS))
        part = self.facts("--documents", "3", folder)
        self.assertEqual(part["documents_read"], 3)

    def test_a_document(self):
        folder = self.dump("dump")
        shown = self.facts("--document", "4", folder)["document"]
        ids, mask = documents(LENGTHS)[4]
        self.assertEqual([t["id"] for t in shown["shown"]], ids)
        self.assertEqual([int(t["supervised"]) for t in shown["shown"]], mask)
        first = sum(LENGTHS[:4])
        want = np.linalg.norm(self.values(folder)[first:first + LENGTHS[4]], axis=-1)
        np.testing.assert_allclose([t["norms"] for t in shown["shown"]], want, rtol=1e-5)
        self.assertIn("document 99", self.facts("--document", "99", folder, code=3)["problems"][0])

    def test_difference(self):
        a, b = self.dump("a"), self.dump("b", dump_span="supervised")
        same = self.facts(a, "--diff", b)
        self.assertEqual(same["documents_compared"], 8)
        self.assertTrue(any("span" in d for d in same["attributes"]))
        for tap in same["taps"]:
            self.assertEqual((tap["relative_l2"], tap["equal_share"], tap["largest"], tap["at"]), (0, 1, 0, None))
            self.assertAlmostEqual(tap["cosine"], 1, places=12)
        other = self.dump("c", train_precision="fp32", data_row_tokens=40)
        x, y = self.values(other), self.values(a)
        found = self.facts(other, "--diff", a)
        for k, tap in enumerate(found["taps"]):
            self.assertAlmostEqual(tap["relative_l2"], np.linalg.norm(x[:, k] - y[:, k]) / np.linalg.norm(y[:, k]), places=9)
            self.assertEqual(tap["largest"], np.abs(x[:, k] - y[:, k]).max())
        llama = self.dump("llama", target_path=GOLDEN / "tiny-llama")
        x = self.values(llama)
        found = self.facts(llama, "--diff", a)
        for k, tap in enumerate(found["taps"]):
            d = np.abs(x[:, k] - y[:, k])
            self.assertAlmostEqual(tap["relative_l2"], np.linalg.norm(d) / np.linalg.norm(y[:, k]), places=6)
            self.assertAlmostEqual(tap["cosine"], (x[:, k] * y[:, k]).sum() / np.linalg.norm(x[:, k]) / np.linalg.norm(y[:, k]), places=9)
            row, channel = np.unravel_index(d.argmax(), d.shape)
            document = int(np.searchsorted(np.cumsum(LENGTHS), row, side="right"))
            self.assertEqual((tap["largest"], tap["at"]["document"], tap["at"]["position"], tap["at"]["channel"]),
                             (d.max(), document, row - sum(LENGTHS[:document]), channel))
        self.assertIn("relative L2", self.text(llama, "--diff", a))

    def test_what_is_broken(self):
        folder = self.dump("dump")
        path = folder / "features-000000.h5"
        with h5py.File(path) as f:
            place = f["features"].id.get_chunk_info(0).byte_offset
        data = path.read_bytes()
        path.write_bytes(data[:place + 9] + bytes([data[place + 9] ^ 1]) + data[place + 10:])
        problems = self.facts("--verify", folder, code=3)["problems"]
        self.assertTrue(any("document 0" in p and "checksum" in p for p in problems), problems)
        path.unlink()
        self.assertIn("missing", self.refused(folder))
        self.assertIn("missing", self.refused(folder / "all.h5"))
        self.refused(self.tokens, "--diff", folder)


class Page(Dump):
    def page(self):
        html = self.folder / "page.html"
        folder = self.dump("dump 模型")
        self.text(folder, "--html", html)
        return html

    def test_is_self_contained(self):
        text = self.page().read_text()
        for banned in ("http://", "https://", "<script", "<link", "src=", "url("):
            self.assertNotIn(banned, text)
        self.assertIn("模型", text)
        self.assertEqual(text.count("After layer"), 2)

    @unittest.skipUnless(BROWSER, "needs chromium")
    def test_in_a_browser(self):
        html = self.page()
        done = subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", html.as_uri()], capture_output=True, text=True,
                              timeout=100, env={"HOME": str(self.folder), "PATH": "/usr/bin:/bin"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("<svg"), 3 + 2 * 2)
        self.assertIn("histogram of token norms", done.stdout)
        picture = self.folder / "page.png"
        subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--screenshot={picture}", "--window-size=1200,1600", html.as_uri()],
                       capture_output=True, timeout=100, env={"HOME": str(self.folder), "PATH": "/usr/bin:/bin"})
        self.assertGreater(picture.stat().st_size, 20000)


if __name__ == "__main__":
    unittest.main(verbosity=2)
