"""Every recipe of configs/ is accepted by `plan` for 1, 2, 4 and 8 GPUs, and the table of configs/README.md is what it says."""
import json
import pathlib
import re
import unittest

from program import ROOT, Folder, run, write_shard

WITH_CUDA = "not in this build" not in [line for line in run("--version").out.splitlines() if line.startswith("CUDA")][0]
RECIPES = sorted(p for p in (ROOT / "configs").glob("*.ini") if p.name != "tiny.ini")
ROW = re.compile(r"^\| (\S+\.ini) \| (\d+) \| (in turn|(\d+) \+ (\d+)) \| ([\d.]+) \| ?([\d.]*) \|$", re.M)


class Recipes(Folder):
    def plan(self, path, ranks, *options):
        text = path.read_text()
        drafter = json.loads((ROOT / re.search(r"^config = (.*)$", text, re.M)[1]).read_text())
        vocab, mask = drafter["vocab_size"], drafter["dflash_config"]["mask_token_id"]
        shard = self.folder / f"{vocab}.h5"
        if not shard.exists():
            write_shard(shard, [([1] * 1500, [0] * 500 + [1] * 1000)] * 60, vocab, mask)
        done = run("plan", "--config", path, "--ranks", ranks, "--json", "--set", f"data.tokens={shard}", *options)
        self.assertEqual(done.code, 0, done)
        return json.loads(done.out)

    def test_plan_takes_them(self):
        self.assertGreaterEqual(len(RECIPES), 3)
        for path in RECIPES:
            for ranks in (1, 8):
                with self.subTest(path=path.name, ranks=ranks):
                    self.assertEqual(self.plan(path, ranks, "--device", "cpu")["ranks"], ranks)

    @unittest.skipUnless(WITH_CUDA, "bf16 memory is known in a build with CUDA only")
    def test_the_table(self):
        rows = ROW.findall((ROOT / "configs/README.md").read_text())
        self.assertEqual(sorted((r[0], r[1]) for r in rows), sorted((p.name, n) for p in RECIPES for n in "1248"))
        for name, ranks, split, targets, drafters, target_gb, drafter_gb in rows:
            with self.subTest(name=name, ranks=ranks):
                plan = self.plan(ROOT / "configs" / name, ranks, "--device", "cuda")
                if split != "in turn":
                    self.assertEqual((plan["targets"], plan["drafters"]), (int(targets), int(drafters)))
                memory = {r["role"]: r["memory_bytes"] / 1e9 for r in plan["rank"]}
                self.assertAlmostEqual(memory.get("target", memory.get("both")), float(target_gb), delta=0.06)
                if drafter_gb:
                    self.assertAlmostEqual(memory["drafter"], float(drafter_gb), delta=0.06)


unittest.main(verbosity=2)
