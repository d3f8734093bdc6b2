"""`slipstream inspect` of folders: targets, drafters, checkpoints and runs, whole and broken."""
import json
import os
import tempfile
import unittest

from inspect_case import GOLDEN, TINY, Inspect, numbers, read_tensors, write_tensors
from program import run


class Models(Inspect):
    def test_targets(self):
        for folder in (TINY + "/target", GOLDEN + "/tiny-llama", GOLDEN + "/tiny-qwen3"):
            found, want = self.facts("--verify", folder), read_tensors(folder + "/model.safetensors")
            with open(folder + "/config.json", encoding="utf-8") as f:
                config = json.load(f)
            self.assertEqual((found["kind"], found["usable"], found["problems"]), ("target", True, []))
            self.assertEqual(found["architecture"], {k: config[k] for k in found["architecture"]})
            self.assertEqual((found["tensors"], found["tensor_bytes"]), (len(want), sum(len(d) for _, _, d in want.values())))
            row = found["table"][0]
            self.assertAlmostEqual(row["mean"], numbers(*want[row["name"]][::2]).mean(), 9)

    def test_a_model_that_is_no_target_here_is_shown(self):
        folder = self.copy(GOLDEN + "/tiny-llama")
        self.edit(folder, model_type="gpt2")
        found = self.facts(folder)
        self.assertFalse(found["usable"])
        self.assertIn("model_type", found["refused"])
        self.assertGreater(found["tensors"], 0)
        self.assertIn("not supported: ", self.text(folder))

    def edit(self, folder, **changes):
        path = os.path.join(folder, "config.json")
        with open(path, encoding="utf-8") as f:
            config = json.load(f)
        with open(path, "w", encoding="utf-8") as f:
            json.dump({**config, **changes}, f)

    def test_faults(self):
        folder = self.copy(GOLDEN + "/tiny-llama")
        self.edit(folder, intermediate_size=1000)
        self.assertIn("the configuration needs", self.facts(folder, code=3)["problems"][0])
        with open(folder + "/config.json", "w", encoding="utf-8") as f:
            f.write("{")
        self.assertIn("config.json: not JSON", self.refused(folder))
        os.remove(folder + "/config.json")
        self.assertEqual(self.facts(folder)["kind"], "weights")
        folder = self.copy(TINY + "/target")
        weights = read_tensors(folder + "/model.safetensors")
        weights["model.norm.weight"] = ("BF16", weights["model.norm.weight"][1], b"\xc0\x7f" * 128)
        write_tensors(folder + "/model.safetensors", weights)
        self.assertEqual(self.facts(folder)["nan"], 128)
        self.assertIn("128 NaN", self.facts("--verify", folder, code=3)["problems"][0])
        os.remove(folder + "/model.safetensors")
        found = self.facts(folder)
        self.assertEqual(found["architecture"]["hidden_size"], 128)
        self.assertIn("none that can be read", self.text(folder))
        with open(folder + "/model.safetensors.index.json", "w", encoding="utf-8") as f:
            json.dump({"weight_map": {"model.norm.weight": "model-00001-of-00001.safetensors"}}, f)
        self.assertIn("1 of 1 files that it names are missing", self.facts(folder, code=3)["problems"][0])


class Runs(Inspect):
    """A short run of its own: a run directory, its checkpoints and their drafters."""

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.temporary.cleanup)
        cls.made = os.path.join(cls.temporary.name, "run")
        settings = {"log.dir": cls.made, "train.steps": 4, "train.rows_per_step": 1, "train.anchors": 2, "checkpoint.every_steps": 2,
                    "eval.tokens": "", "eval.prompts": ""}
        sets = [a for k, v in settings.items() for a in ("--set", f"{k}={v}")]
        done = run("train", "--config", "configs/tiny.ini", *sets, timeout=300)
        if done.code != 0:
            raise RuntimeError(done)

    def setUp(self):
        super().setUp()
        self.run_folder = self.copy(self.made)
        self.checkpoints = self.run_folder + "/checkpoints"
        self.newest = self.checkpoints + "/step-00000004"
        self.drafter = self.newest + "/drafter"

    def test_run(self):
        with open(self.run_folder + "/metrics.jsonl", encoding="utf-8") as f:
            metrics = [json.loads(line) for line in f]
        with open(self.run_folder + "/eval.jsonl", "w", encoding="utf-8") as f:
            f.write('{"step": 0, "acceptance_length": 1.25}\n')
        found = self.facts(self.run_folder)
        self.assertEqual((found["kind"], found["problems"], found["steps"]), ("run directory", [], 4))
        self.assertEqual(found["last_metrics"], metrics[-1])
        self.assertEqual(found["evaluations"], [{"step": 0, "acceptance_length": 1.25}])
        self.assertEqual(found["settings"]["train.anchors"], "2")
        self.assertNotIn("train.beta1", found["settings"])
        self.assertIn("train.beta1", found["config"])
        self.assertEqual(found["ranks"]["ranks"], 1)
        self.assertEqual([c["step"] for c in found["checkpoints"]["checkpoints"]], [2, 4])
        text = self.text(self.run_folder)
        self.assertIn("4 of 4", text)
        self.assertIn("acceptance length 1.25", text)
        self.assertIn("train.anchors = 2", text)

    def test_run_that_was_killed_while_it_wrote(self):
        with open(self.run_folder + "/metrics.jsonl", "a", encoding="utf-8") as f:
            f.write('{"step": 5, "lo')
        self.assertEqual(self.facts(self.run_folder)["steps"], 4)
        with open(self.run_folder + "/metrics.jsonl", "a", encoding="utf-8") as f:
            f.write('\n{"step": 6}\n')
        self.assertIn("line 5 is no JSON object", self.facts(self.run_folder, code=3)["problems"][0])

    def test_checkpoint(self):
        found = self.facts("--verify", self.newest)
        with open(self.newest + "/state/trainer.json", encoding="utf-8") as f:
            trainer = json.load(f)
        self.assertEqual((found["kind"], found["complete"], found["verified"], found["problems"]), ("checkpoint", True, True, []))
        for key in ("step", "epoch", "epoch_step", "total_steps", "documents", "tokens", "config"):
            self.assertEqual(found[key], trainer[key])
        self.assertEqual((found["next_step"], found["finished"]), (5, True))
        self.assertEqual(found["settings"]["train.lr"], "0.004")
        self.assertEqual(found["state_tensors"], 3 * 25)
        self.assertEqual(found["drafter"]["published"]["missing"], [])
        text = self.text(self.newest)
        self.assertIn("complete, sizes agree", text)
        self.assertIn("step 5, in epoch 0 after 4 of its steps (finished: with --extend)", text)
        self.assertIn("25 of 25 tensors", text)

    def test_broken_checkpoints(self):
        weights = self.drafter + "/model.safetensors"
        with open(weights, "r+b") as f:
            f.seek(-1, os.SEEK_END)
            last = f.read(1)
            f.seek(-1, os.SEEK_END)
            f.write(bytes([last[0] ^ 1]))
        self.facts(self.newest)
        self.assertIn("checksum", self.facts("--verify", self.newest, code=3)["problems"][0])
        self.assertIn("step-00000004: drafter/model.safetensors has checksum", self.facts("--verify", self.checkpoints, code=3)["problems"][0])
        os.truncate(weights, os.path.getsize(weights) - 1)
        found = self.facts(self.newest, code=3)
        self.assertFalse(found["complete"])
        self.assertIn("the manifest says", found["problems"][0])
        self.assertIn("was cut short", found["problems"][1])
        self.assertEqual(found["step"], 4)
        os.remove(self.newest + "/manifest.json")
        self.assertIn("no manifest.json", self.facts(self.newest, code=3)["problems"][0])
        found = self.facts(self.run_folder, code=3)
        self.assertEqual(found["checkpoints"]["continues_from"], "step-00000002")
        self.assertIn("latest names 'step-00000004', which is no complete checkpoint", found["problems"][1])

    def test_checkpoints(self):
        os.rename(self.checkpoints + "/step-00000002", self.checkpoints + "/step-00000002.partial")
        os.remove(self.checkpoints + "/step-00000002.partial/manifest.json")
        found = self.facts("--verify", self.checkpoints + "/")
        self.assertEqual((found["kind"], found["latest"], found["continues_from"]), ("folder of checkpoints", "step-00000004", "step-00000004"))
        self.assertEqual([c["complete"] for c in found["checkpoints"]], [False, True])
        text = self.text("--verify", self.checkpoints)
        self.assertIn("unfinished", text)
        self.assertIn("checksums agree", text)

    def test_drafter(self):
        found, want = self.facts(self.drafter), read_tensors(self.drafter + "/model.safetensors")
        self.assertEqual((found["kind"], found["problems"], found["tensors"]), ("drafter", [], 25))
        self.assertEqual(found["drafter"], {"block_size": 8, "mask_token_id": 258, "taps": [0, 2], "target_layers": 6,
                                            "layers": [{"window": None, "causal": False}] * 2, "parameters": found["parameters"]})
        row = next(r for r in found["table"] if r["name"] == "fc.weight")
        self.assertAlmostEqual(row["deviation"], numbers(*want["fc.weight"][::2]).std(), 9)
        self.assertIn("0-1 full, not causal in the block", self.text(self.drafter))

    def test_drafter_with_other_tensors_than_published(self):
        weights = read_tensors(self.drafter + "/model.safetensors")
        weights["spare"] = weights.pop("layers.1.mlp.up_proj.weight")
        dtype, shape, data = weights["layers.0.self_attn.o_proj.weight"]
        weights["layers.0.self_attn.o_proj.weight"] = (dtype, shape[::-1], data)
        write_tensors(self.drafter + "/model.safetensors", weights)
        found = self.facts(self.drafter, code=3)
        self.assertEqual(found["published"]["missing"], ["layers.1.mlp.up_proj.weight"])
        self.assertIn("o_proj", found["published"]["wrong_shape"][0])
        self.assertEqual(found["published"]["others"], ["spare"])
        self.assertIn("23 of 25 tensors", self.text(self.drafter, code=3))
        with open(self.drafter + "/config.json", encoding="utf-8") as f:
            config = json.load(f)
        config["dflash_config"]["target_layer_ids"] = [0, 9]
        with open(self.drafter + "/config.json", "w", encoding="utf-8") as f:
            json.dump(config, f)
        self.assertIn("target_layer_ids", self.facts(self.drafter, code=3)["problems"][0])

    def test_state_of_another_drafter(self):
        tensors = read_tensors(self.newest + "/state/optimizer.safetensors")
        tensors["mm.fc.weight"] = tensors.pop("m.fc.weight")
        write_tensors(self.newest + "/state/optimizer.safetensors", tensors)
        path = self.newest + "/manifest.json"
        with open(path, encoding="utf-8") as f:
            manifest = json.load(f)
        next(x for x in manifest["files"] if x["name"] == "state/optimizer.safetensors")["bytes"] = os.path.getsize(
            self.newest + "/state/optimizer.safetensors")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(manifest, f)
        self.assertIn("no tensor m.fc.weight", self.facts(self.newest, code=3)["problems"][0])

    def test_nothing_is_written(self):
        def state():
            return sorted((os.path.join(d, n), os.stat(os.path.join(d, n)).st_mtime_ns) for d, _, names in os.walk(self.run_folder) for n in names + ["."])
        before = state()
        self.text("--verify", self.run_folder, self.checkpoints, self.newest, self.drafter, self.newest + "/state/optimizer.safetensors")
        self.assertEqual(state(), before)


unittest.main(verbosity=2)
