"""Every command in the head of a recipe of configs/ is accepted by `plan` on 1, 2, 4 and 8 GPUs, what the recipes and configs/README.md say of memory
is what `plan` says, and the six commands of a recipe are run in earnest on a small target in place of its own."""
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import unittest

import h5py

from inspect_case import write_tensors
from program import BUILD, DRAFTER, GOLDEN, ROOT, Folder, documents, run, write_shard

WITH_CUDA = "not in this build" not in [line for line in run("--version").out.splitlines() if line.startswith("CUDA")][0]
DEVICE = "cuda" if WITH_CUDA else "cpu"
RECIPES = sorted(p for p in (ROOT / "configs").glob("*.ini") if p.name != "tiny.ini")
COMMAND = re.compile(r"^#   (online|dump|offline) +(mpirun -np N slipstream .*)$", re.M)
ROW = re.compile(r"^\| (\S+\.ini) \| (\d+) \| (in turn|(\d+) \+ (\d+)) \| ([\d.]+) \| ?([\d.]*) \|$", re.M)
MODES = re.compile(r"^\| (\S+\.ini) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) kB \|$", re.M)


def commands_of(path):
    """(mode, command) of the smoke runs, then of the full ones."""
    return COMMAND.findall(path.read_text())


def settings_of(command):
    """The --set of a command, as a dictionary."""
    words = shlex.split(command)
    return dict(words[i + 1].split("=", 1) for i, w in enumerate(words) if w == "--set")


class Recipes(Folder):
    def model(self, path):
        """What a recipe needs of its target without its weights: a shard of tokens, and a folder with the architecture."""
        text = path.read_text()
        drafter = json.loads((ROOT / re.search(r"^config = (.*)$", text, re.M)[1]).read_text())
        vocab, mask = drafter["vocab_size"], drafter["dflash_config"]["mask_token_id"]
        self.assertIn(f"--mask-token {mask}", text)
        shard = self.folder / f"{vocab}.h5"
        if not shard.exists():
            write_shard(shard, [([1] * 1500, [0] * 500 + [1] * 1000)] * 60, vocab, mask)
        return shard, ROOT / re.search(r"^path = (.*)$", text, re.M)[1], drafter

    def dumped(self, path):
        """A shard of hidden states for the recipe's drafter: zeros, under the name of made-up weights."""
        _, architecture, drafter = self.model(path)
        taps, hidden, tokens = drafter["dflash_config"]["target_layer_ids"], drafter["hidden_size"], 64
        folder = self.folder / path.stem
        (folder / "hs").mkdir(parents=True)
        shutil.copytree(architecture, folder / "target")
        write_tensors(folder / "target/model.safetensors", {"a": ("F32", [1], bytes(4))})
        shard = write_shard(folder / "t.h5", [([1] * tokens, [1] * tokens)], drafter["vocab_size"], drafter["dflash_config"]["mask_token_id"])
        write_tensors(folder / "hs/hs_0.safetensors", {"token_ids": ("I64", [tokens], (1).to_bytes(8, "little") * tokens),
                      "hidden_states": ("BF16", [tokens, len(taps) + 1, hidden], bytes(tokens * (len(taps) + 1) * hidden * 2))})
        done = run("exchange", "--in", folder / "hs", "--tokens", shard, "--target", folder / "target",
                   "--layer-ids", ",".join(str(t + 1) for t in taps), "--dump", folder / "dump")
        self.assertEqual(done.code, 0, done)
        shard = folder / "dump/features-000000.h5"
        with h5py.File(shard, "r+") as f:
            f.attrs["target_fingerprint"] = "synthetic-1"
        return architecture, shard

    def plan(self, path, ranks, mode, settings, device=DEVICE):
        """`plan` of one of the recipe's commands: with stand-ins for the files that it names."""
        changed = dict(settings)
        if mode == "offline":
            changed["target.path"], changed["data.features"] = self.stand_ins[path]
        else:
            changed["target.path"], changed["data.tokens"] = self.model(path)[1], self.model(path)[0]
        if "dump.dir" in changed:
            changed["dump.dir"] = self.folder / "none"
        sets = [word for key, value in changed.items() for word in ("--set", f"{key}={value}")]
        done = run("plan", "--config", path, "--ranks", ranks, "--json", "--device", device, *(["--dump"] if mode == "dump" else []), *sets)
        self.assertEqual(done.code, 0, done)
        return json.loads(done.out)

    def setUp(self):
        super().setUp()
        self.stand_ins = {path: self.dumped(path) for path in RECIPES}

    def test_the_commands_are_planned(self):
        self.assertEqual([p.stem for p in RECIPES], ["llama-3.1-8b", "qwen3-4b", "qwen3-8b", "qwen3.6-27b"])
        alike = set()
        for path in RECIPES:
            commands = commands_of(path)
            self.assertEqual([mode for mode, _ in commands], ["online", "dump", "offline"] * 2)
            alike.add("\n".join(c for _, c in commands).replace(path.stem, "MODEL"))
            for mode, command in commands:
                for ranks in (1, 2, 4, 8):
                    with self.subTest(path=path.name, mode=mode, command=command, ranks=ranks):
                        plan = self.plan(path, ranks, mode, settings_of(command))
                        self.assertEqual(plan["ranks"], ranks)
                        if mode == "offline":
                            self.assertEqual({r["role"] for r in plan["rank"]}, {"drafter"})
                        elif mode == "dump":
                            self.assertEqual(plan["documents"], 60)
        self.assertEqual(len(alike), 1, "the recipes differ in more than names")

    @unittest.skipUnless(WITH_CUDA, "bf16 memory is known in a build with CUDA only")
    def test_the_tables(self):
        page = (ROOT / "configs/README.md").read_text()
        rows = ROW.findall(page)
        self.assertEqual(sorted((r[0], r[1]) for r in rows), sorted((p.name, n) for p in RECIPES for n in "1248"))
        online = {}
        for name, ranks, split, targets, drafters, target_gb, drafter_gb in rows:
            with self.subTest(name=name, ranks=ranks):
                plan = self.plan(ROOT / "configs" / name, ranks, "online", {})
                if split != "in turn":
                    self.assertEqual((plan["targets"], plan["drafters"]), (int(targets), int(drafters)))
                memory = {r["role"]: r["memory_bytes"] / 1e9 for r in plan["rank"]}
                self.assertAlmostEqual(memory.get("target", memory.get("both")), float(target_gb), delta=0.06)
                if drafter_gb:
                    self.assertAlmostEqual(memory["drafter"], float(drafter_gb), delta=0.06)
                online[name, ranks] = target_gb, drafter_gb
        modes = MODES.findall(page)
        self.assertEqual(sorted(m[0] for m in modes), sorted(p.name for p in RECIPES))
        for name, dump_gb, offline_gb, token_kb in modes:
            with self.subTest(name=name):
                path = ROOT / "configs" / name
                dump = self.plan(path, 2, "dump", {"dump.dir": "x"})
                self.assertAlmostEqual(dump["memory_bytes"] / 1e9, float(dump_gb), delta=0.06)
                self.assertAlmostEqual(dump["bytes"] / (60 * 1500) / 1e3, float(token_kb), delta=0.5)
                offline = self.plan(path, 2, "offline", {"data.tokens": ""})
                self.assertAlmostEqual(offline["rank"][0]["memory_bytes"] / 1e9, float(offline_gb), delta=0.06)
                one, two, eight = (online[name, n] for n in "128")
                said = (f"one GPU {one[0]}; more: target {two[0]} to {eight[0]}, drafter {two[1]}; dump {dump_gb}; offline {offline_gb}")
                self.assertIn(said, path.read_text())

    @unittest.skipUnless(WITH_CUDA, "bf16 memory is known in a build with CUDA only")
    def test_the_memory_of_fp8(self):
        rows = re.findall(r"^\| (\S+\.ini) \| ([\d.]+) \|$", (ROOT / "kernels/FP8.md").read_text(), re.M)
        self.assertEqual([r[0] for r in rows], ["qwen3-8b.ini", "qwen3.6-27b.ini"])
        for name, more_gb in rows:
            def memory(**settings):
                plan = self.plan(ROOT / "configs" / name, 2, "online", {k.replace("_", ".", 1): v for k, v in settings.items()})
                return next(r["memory_bytes"] for r in plan["rank"] if r["role"] == "drafter") / 1e9
            bf16 = memory()
            self.assertAlmostEqual(memory(train_precision="fp8") - bf16, float(more_gb), delta=0.06)
        odd = json.loads((ROOT / "configs/qwen3-8b-drafter.json").read_text())
        (self.folder / "odd.json").write_text(json.dumps({**odd, "intermediate_size": 12290}))
        words = [w for pair in (f"data.tokens={self.model(ROOT / 'configs/qwen3-8b.ini')[0]}", f"drafter.config={self.folder}/odd.json", "eval.tokens=", "eval.prompts=", "train.precision=fp8") for w in ("--set", pair)]
        done = run("plan", "--config", ROOT / "configs/qwen3-8b.ini", "--device", "cuda", *words)
        self.assertEqual((done.code, done.err.count("\n")), (2, 1), done)
        self.assertIn("train.precision=fp8: on a GPU fp8 needs multiples of 16, the drafter's intermediate_size is 12290; use bf16", done.err)

    def test_the_commands_run(self):
        """The smoke commands, then the full ones, as they stand, on two CPU ranks and a target of a few thousand weights."""
        path = ROOT / "configs/qwen3-8b.ini"
        (self.folder / "drafter.json").write_text(json.dumps(DRAFTER))
        (self.folder / "shards").mkdir()
        write_shard(self.folder / "shards/a.h5", documents([20, 12, 30, 16, 39, 8, 25, 31] * 6), 256, 255)
        small = path.read_text()
        for was, now in (("path = configs/models/qwen3-8b", f"path = {GOLDEN}/tiny-qwen3"), ("config = configs/qwen3-8b-drafter.json", "config = drafter.json"),
                         ("row_tokens = 4096", "row_tokens = 40"), ("max_length = 3072", "max_length = 0"), ("anchors = 512", "anchors = 4"),
                         ("rows_per_step = 24", "rows_per_step = 3")):
            self.assertEqual(small.count(was), 1, was)
            small = small.replace(was, now)
        (self.folder / "configs").mkdir()
        (self.folder / "configs/qwen3-8b.ini").write_text(small)
        steps = {}
        for i, (mode, command) in enumerate(commands_of(path)):
            command = command.replace("target.path=T", f"target.path={GOLDEN}/tiny-qwen3").replace("mpirun -np N slipstream", f"{ROOT}/launch/run -n 2 --build {BUILD}")
            done = subprocess.run([*shlex.split(command), "--device", "cpu"], cwd=self.folder, capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, f"{command}\n{done.stderr}")
            if mode != "dump":
                directory = settings_of(command).get("log.dir", "runs/qwen3-8b")
                steps[directory] = len((self.folder / directory / "metrics.jsonl").read_text().splitlines())
                self.assertEqual((self.folder / directory / "checkpoints").exists(), i > 2, "made-up weights leave no checkpoint")
        self.assertEqual((steps["runs/smoke-online"], steps["runs/smoke-offline"]), (20, 20))
        self.assertEqual(steps["runs/qwen3-8b"], steps["runs/qwen3-8b-offline"])
        self.assertGreater(steps["runs/qwen3-8b"], 20)


unittest.main(verbosity=2)
