"""The scripts of this folder on CPU ranks with the tiny models: what they write, that they go on, what they refuse."""
import json
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "apps"))
from program import BUILD, ROOT, Folder  # noqa: E402
from machine import check_faults  # noqa: E402


class Scripts(Folder):
    def call(self, name, *words, code=0):
        done = subprocess.run([sys.executable, ROOT / "tests/gpus" / name, "--build", BUILD, "--out", self.folder / "out", "--work", self.folder / "work", *map(str, words)],
                              cwd=ROOT, capture_output=True, text=True, timeout=150)
        self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        return done

    def test_one_node(self):
        words = "--device", "cpu", "--ranks", 3, "--split", "1+2", "--steps", 8
        done = self.call("one_node.py", *words, "--minutes", 4.5, "planned", "dumping", code=75)  # planned may take longer than that
        self.assertIn("call again: planned", done.stderr)
        self.call("one_node.py", *words, "planned", "split")
        rows = {row["run"]: row for row in map(json.loads, (self.folder / "out/rows.jsonl").read_text().splitlines())}
        planned, dumped = rows["planned"], rows["dumping"]
        self.assertEqual((planned["steps"], planned["ranks"], len(planned["rank"]), planned["targets"] + planned["drafters"]), (8, 3, 3, 3))
        self.assertEqual(planned["peak_share"], {"all": None, "targets": None, "drafters": None})
        for rank in planned["rank"]:  # all ranks have said what their time went on
            self.assertGreater(rank["rows"], 0)
            self.assertGreater(rank["seconds"], 0)
            self.assertIn("transfer_exposed_share" if rank["role"] == "target" else "sums_exposed_share", rank)
        for role in ("target", "drafter"):  # the steps and 8 that warm up, of 3 rows
            self.assertEqual(sum(r["rows"] for r in planned["rank"] if r["role"] == role), 3 * (8 + 8))
        self.assertEqual((dumped["steps"], dumped["verified"]), (20, True))
        self.assertGreater(dumped["bytes"], 1e6)
        page = (self.folder / "out/README.md").read_text()
        for part in (f"{planned['tokens_per_s']:,.0f}", "## planned", "drafter.", "Features dumped", "| True |"):
            self.assertIn(part, page)
        written = (self.folder / "out/planned.json").stat().st_mtime_ns
        self.assertEqual(self.call("one_node.py", *words, "planned", "split", "dumping").stdout, "")  # all are there
        self.assertEqual((self.folder / "out/planned.json").stat().st_mtime_ns, written)

    def test_two_gpus(self):
        self.call("two_gpus.py", "--dry", "decoding", "losses_27b")
        got = {name: json.loads((self.folder / f"out/{name}.json").read_text())["result"] for name in ("decoding", "losses_27b")}
        self.assertEqual((got["decoding"]["equal"], got["decoding"]["responses"]), (True, 20))
        self.assertEqual(got["losses_27b"]["largest loss difference"], 0)

    def test_one_gpu(self):
        self.call("one_gpu.py", "--dry", "steps", "capture", "busy")
        got = {name: json.loads((self.folder / f"out/{name}.json").read_text())["result"] for name in ("steps", "capture", "busy")}
        self.assertGreater(got["steps"]["tiny"]["step_ms"]["found"], 0)
        self.assertEqual((got["steps"]["tiny"]["step_ms"]["holds"], got["capture"]["tiny"]["tokens_per_s"]["holds"]), (False, True))  # asked: 0 ms, 0 tokens/s
        self.assertEqual(len(got["busy"]["step_ms"]), 2)
        self.assertTrue(0 <= got["busy"]["training"]["drafters_wait"] < 1 and got["busy"]["busy"]["found"] > 0.1)
        self.assertEqual({json.loads(line)["op"] for line in (self.folder / "out/rows.jsonl").read_text().splitlines()}, {"step", "capture"})

    def test_fp8(self):
        self.call("fp8.py", "--dry", "step", "tiny")
        got = {name: json.loads((self.folder / f"out/{name}.json").read_text())["result"] for name in ("step", "tiny")}
        self.assertEqual([len(got["step"]["tiny"][way]) for way in ("bf16", "fp8")], [2, 2])
        self.assertGreater(got["step"]["profile_ms"]["quantize_fp8"], 0)
        self.assertEqual(got["tiny"]["mean"]["found"], got["tiny"]["over_bf16_percent"][0])
        self.assertNotEqual(got["tiny"]["mean"]["found"], 0)

    def test_a_part_that_fails(self):
        done = self.call("one_node.py", "--device", "cpu", "--ranks", 2, "--set", "train.lr=hot", "planned", code=1)
        self.assertIn("planned: RuntimeError", done.stderr)
        self.assertIn("train.lr", done.stderr)
        self.assertFalse((self.folder / "out/planned.json").exists())

    def test_refusals(self):
        for words, part in ((["--split", "3+3"], "3+3"), (["--split", "8"], "--split 8"), (["--ranks", 1], "--ranks 1")):
            self.assertIn(part, self.call("one_node.py", "--device", "cpu", *words, code=2).stderr)

    def test_faults_that_end_badly(self):
        good = {"fault": "train:3:1:kill", "happened": True, "gone_s": 2, "exit_code": 4, "processes_left": 0, "gpu_memory_left_gb": 0, "said": "rank 1 on a is gone",
                "resumed_bit_equal": True}
        check_faults([good, {**good, "gpu_memory_left_gb": None}])
        for wrong in ({"happened": False}, {"gone_s": 31}, {"exit_code": 137}, {"processes_left": 1}, {"gpu_memory_left_gb": 40}, {"said": "nothing"},
                      {"said": "rank 10 on a is gone"}, {"resumed_bit_equal": False}):
            with self.assertRaises(RuntimeError, msg=wrong):
                check_faults([good, {**good, **wrong}])


unittest.main(verbosity=2)
