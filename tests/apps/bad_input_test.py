"""Wrong configurations and files of every kind: exit code 2 or 3, one line that names what and where, nothing written.

Each case is a run that would train a step, but for one change.
"""
import json
import shutil
import time
import unittest

import h5py
import numpy as np

from program import DRAFTER, Folder, documents, hf, run, write_config, write_shard

LIMIT_S = 5  # of processor time: machines that run tests are busy


def edit_json(path, **changes):
    values = json.loads(path.read_text())
    for key, value in changes.items():
        if value is KeyError:
            values.pop(key)
        else:
            values[key] = value
    path.write_text(json.dumps(values))


def drafter(**changes):
    """A change of drafter.json; `taps` and `mask` lie in dflash_config."""
    def change(test, settings):
        inner = dict(DRAFTER["dflash_config"])
        if "taps" in changes:
            inner["target_layer_ids"] = changes["taps"]
        if "mask" in changes:
            inner["mask_token_id"] = changes["mask"]
        rest = {k: v for k, v in changes.items() if k not in ("taps", "mask")}
        edit_json(test.folder / "drafter.json", dflash_config=inner, **rest)
    return change


def target(**changes):
    return lambda test, settings: edit_json(test.folder / "target" / "config.json", **changes)


def setting(**changes):
    """Underscores of the first word stand for the dot: train_lr is train.lr."""
    return lambda test, settings: settings.update({k.replace("_", ".", 1): v for k, v in changes.items()})


def without(*keys):
    return lambda test, settings: [settings.pop(k) for k in keys]


def shard(docs, vocab=256, *options):
    return lambda test, settings: write_shard(test.folder / "train.h5", docs, vocab, vocab - 1, *options)


def cut(name, keep):
    """Leaves keep(size) bytes of a file."""
    def change(test, settings):
        path = test.folder / name
        path.write_bytes(path.read_bytes()[:keep(path.stat().st_size)])
    return change


def split_target(then):
    """The target's weights in three shards with an index; `then(folder, index)` spoils them."""
    def change(test, settings):
        folder = test.folder / "target"
        tensors, _ = hf.read(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        index = {}
        for part in range(3):
            file = f"model-{part + 1:05}-of-00003.safetensors"
            chosen = {n: x for i, (n, x) in enumerate(sorted(tensors.items())) if i % 3 == part}
            hf.write(str(folder / file), chosen, list(chosen))
            index.update({n: file for n in chosen})
        then(folder, index)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return change


def drop_tensor(name):
    def change(test, settings):
        path = test.folder / "target" / "model.safetensors"
        tensors, _ = hf.read(path)
        tensors.pop(name)
        hf.write(str(path), tensors, list(tensors))
    return change


def misplaced(folder, index):
    index["model.norm.weight"] = next(f for f in sorted(set(index.values())) if f != index["model.norm.weight"])


def published(then):
    """A published drafter folder to start from instead of drafter.config; `then(tensors, config)` spoils it."""
    def change(test, settings):
        folder = test.folder / "published"
        folder.mkdir()
        del settings["drafter.config"]
        settings["drafter.init_from"] = folder
        h, d, i, q, kv, k = 64, 16, 64, 32, 16, 2
        shapes = {"fc.weight": (h, k * h), "hidden_norm.weight": (h,), "norm.weight": (h,)}
        layer = {"input_layernorm": (h,), "post_attention_layernorm": (h,), "self_attn.q_proj": (q, h), "self_attn.k_proj": (kv, h),
                 "self_attn.v_proj": (kv, h), "self_attn.o_proj": (h, q), "self_attn.q_norm": (d,), "self_attn.k_norm": (d,),
                 "mlp.gate_proj": (i, h), "mlp.up_proj": (i, h), "mlp.down_proj": (h, i)}
        shapes.update({f"layers.0.{n}.weight": s for n, s in layer.items()})
        tensors = {n: np.ones(s, np.float32) for n, s in shapes.items()}
        config = json.loads(json.dumps(DRAFTER))
        then(tensors, config)
        hf.write(str(folder / "model.safetensors"), tensors, list(tensors))
        (folder / "config.json").write_text(json.dumps(config))
    return change


def used_run_directory(test, settings):
    (test.folder / "run").mkdir()
    (test.folder / "run" / "metrics.jsonl").write_text("")


def spoil(name, data):
    return lambda test, settings: (test.folder / name).write_bytes(data)


EITHER = object()  # the exit code may be 2 or 3
MODEL = "target/model.safetensors"
# exit code, what the line names, the change, options of the command
CASES = {
    # the configuration
    "no such file": (2, ["absent.ini"], None, ["--config", "absent.ini"]),
    "no target.path": (2, ["run.ini", "target.path"], without("target.path"), []),
    "no data.tokens": (2, ["data.tokens"], without("data.tokens"), []),
    "no drafter": (2, ["drafter.config", "drafter.init_from"], without("drafter.config"), []),
    "no log.dir": (2, ["log.dir"], without("log.dir"), []),
    "no end": (2, ["train.steps", "data.epochs"], without("train.steps"), []),
    "two faults at once": (2, ["target.path", "log.dir"], without("target.path", "log.dir"), []),
    "unknown key": (2, ["run.ini", "train.row_per_step", "train.rows_per_step"], setting(train_row_per_step=3), []),
    "unknown key set": (2, ["--set", "data.token", "data.tokens"], None, ["--set", "data.token=x"]),
    "set without value": (2, ["--set train.steps", "key=value"], None, ["--set", "train.steps"]),
    "a word for a number": (2, ["run.ini", "train.steps", "many"], setting(train_steps="many"), []),
    "a word for a number, set": (2, ["train.lr", "fast"], None, ["--set", "train.lr=fast"]),
    "unknown choice": (2, ["train.loss", "kl", "decay, dpace"], setting(train_loss="kl"), []),
    "out of range": (2, ["train.warmup_ratio", "1.5"], setting(train_warmup_ratio=1.5), []),
    "negative": (2, ["train.steps", "-1"], setting(train_steps=-1), []),
    "unknown option": (2, ["--configuration"], None, ["--configuration", "x"]),
    "misspelt option": (2, ["--resum'", "the nearest is --resume"], None, ["--resum", "auto"]),
    "unknown device": (2, ["--device", "tpu"], None, ["--device", "tpu"]),
    "two roles on one rank": (2, ["roles.targets=2", "1 rank"], setting(roles_targets=2), []),
    "nobody trains": (2, ["roles.drafters=0"], setting(roles_drafters=0), []),
    "more than resume allows": (2, ["--extend", "--resume"], None, ["--extend", "5"]),
    "nothing to resume": (3, ["--resume", "nowhere"], None, ["--resume", "nowhere"]),
    "run directory in use": (2, ["log.dir", "run", "--resume auto"], used_run_directory, []),
    "run directory is a file": (2, ["log.dir", "drafter.json"], setting(log_dir="{folder}/drafter.json"), []),
    # token shards
    "missing shard": (3, ["absent.h5"], setting(data_tokens="{folder}/absent.h5"), []),
    "one of two is missing": (3, ["absent.h5"], setting(data_tokens="{folder}/train.h5,{folder}/absent.h5"), []),
    "pattern without a match": (3, ["shards-*.h5"], setting(data_tokens="{folder}/shards-*.h5"), []),
    "a weight that is no number": (2, ["data.tokens", "train.h5@two'", "not a number"], setting(data_tokens="{folder}/train.h5@two"), []),
    "a weight below 0": (2, ["data.tokens", "train.h5@-1'", "-1 is not between"], setting(data_tokens="{folder}/train.h5@-1"), []),
    "weight 0": (2, ["data.tokens", "train.h5@0'", "leave the entry out"], setting(data_tokens="{folder}/train.h5@0"), []),
    "an @ with nothing": (2, ["data.tokens", "train.h5@'", "a weight is missing"], setting(data_tokens="{folder}/train.h5@"), []),
    "a weight that draws nothing": (2, ["data.tokens", "train.h5@0.1'", "of its 4 documents"], setting(data_tokens="{folder}/train.h5@0.1"), []),
    "a weight without a match": (3, ["shards-*.h5", "no such file"], setting(data_tokens="{folder}/shards-*.h5@2"), []),
    "a file of two entries": (2, ["data.tokens", "train.h5 is named by", "*.h5"], setting(data_tokens="{folder}/train.h5@2,{folder}/*.h5"), []),
    "weights and a dump": (2, ["dump.dir", "weights"], setting(data_tokens="{folder}/train.h5@2", dump_dir="{folder}/dump"), []),
    "a weight for held-out shards": (2, ["eval.tokens", "leave the weights out"], setting(eval_tokens="{folder}/train.h5@2"), []),
    "missing held-out shard": (3, ["absent.h5"], setting(eval_tokens="{folder}/absent.h5"), []),
    "no shard": (3, ["train.h5"], spoil("train.h5", b"not HDF5" * 200), []),
    "cut shard": (3, ["train.h5"], cut("train.h5", lambda n: n // 2), []),
    "another vocabulary": (EITHER, ["train.h5", "300", "256"], shard(documents([20, 12]), 300), []),
    "no answers": (3, ["train.h5"], shard([([1, 2, 3, 4], [0, 0, 0, 0])], 256, "--prompts"), []),
    "cut before the answer (A1)": (3, ["train.h5"], setting(data_max_length=5), []),
    "longer than the target takes": (2, ["600", "512", "data.max_length"], shard(documents([600, 20])), ["--set", "data.row_tokens=1000"]),
    # the drafter
    "missing drafter": (3, ["absent.json"], setting(drafter_config="{folder}/absent.json"), []),
    "no JSON": (3, ["drafter.json"], spoil("drafter.json", b"{"), []),
    "tap too high (B3)": (3, ["drafter.json", "4", "0..3"], drafter(taps=[0, 4]), []),
    "tap negative (B3)": (EITHER, ["drafter.json", "-1"], drafter(taps=[-1, 2]), []),
    "tap twice (B3)": (EITHER, ["drafter.json", "target_layer_ids", "2"], drafter(taps=[2, 2]), []),
    "mask token outside (B6)": (3, ["drafter.json", "mask_token_id", "256"], drafter(mask=256), []),
    "mask token negative (B6)": (EITHER, ["drafter.json", "mask_token_id", "-1"], drafter(mask=-1), []),
    "width (B17)": (2, ["drafter.json", "hidden_size", "32", "64"], drafter(hidden_size=32), []),
    "vocabulary": (2, ["drafter.json", "vocab_size", "300", "256"], drafter(vocab_size=300), []),
    "layers of the target": (2, ["drafter.json", "num_target_layers", "36", "4"], drafter(num_target_layers=36), []),
    "rope of the drafter": (EITHER, ["drafter.json", "yarn"], drafter(rope_scaling={"rope_type": "yarn", "factor": 4.0}), []),
    "inputs of fc (B17)": (3, ["fc.weight", "[64, 64]", "[64, 128]"], published(lambda t, c: t.update({"fc.weight": np.ones((64, 64), np.float32)})), []),
    "drafter without taps (B3)": (3, ["published", "target_layer_ids"], published(lambda t, c: c["dflash_config"].pop("target_layer_ids")), []),
    "drafter tensor missing": (3, ["published", "layers.0.mlp.up_proj.weight"], published(lambda t, c: t.pop("layers.0.mlp.up_proj.weight")), []),
    # the target
    "missing target": (3, ["absent"], setting(target_path="{folder}/absent"), []),
    "unsupported model": (3, ["config.json", "model_type", "qwen3_moe"], target(model_type="qwen3_moe"), []),
    "unsupported rope": (3, ["config.json", "yarn"], target(rope_scaling={"rope_type": "yarn", "factor": 4.0}), []),
    "no rope base": (3, ["config.json", "rope_theta"], target(rope_theta=KeyError), []),
    "unsupported bias": (3, ["config.json", "attention_bias"], target(attention_bias=True), []),
    "unsupported window": (3, ["config.json", "use_sliding_window"], target(use_sliding_window=True), []),
    "missing key": (3, ["config.json", "num_hidden_layers"], target(num_hidden_layers=KeyError), []),
    "weights of another shape": (3, ["gate_proj", "[128, 64]", "[96, 64]"], target(intermediate_size=96), []),
    "cut weights (B12)": (3, [MODEL], cut(MODEL, lambda n: n - 100), []),
    "cut header (B12)": (3, [MODEL], cut(MODEL, lambda n: 50), []),
    "empty weights (B12)": (3, [MODEL], cut(MODEL, lambda n: 0), []),
    "missing tensor": (3, ["target", "model.layers.2.mlp.down_proj.weight"], drop_tensor("model.layers.2.mlp.down_proj.weight"), []),
    "missing shard of an index (B11)": (3, ["model-00002-of-00003.safetensors"], split_target(lambda f, i: (f / "model-00002-of-00003.safetensors").unlink()), []),
    "tensor in another shard (B11)": (3, ["model.norm.weight", "-of-00003.safetensors"], split_target(misplaced), []),
}


class OneChange(Folder):
    def setUp(self):
        super().setUp()
        self.good = self.small_run()

    def prepared(self, change):
        settings = dict(self.good)
        if change is not None:
            change(self, settings)
        settings = {k: str(v).replace("{folder}", str(self.folder)) for k, v in settings.items()}
        write_config(self.folder / "run.ini", settings)

    def check(self, code, parts, options, ranks=None):
        before = self.tree()
        options = [*(["--config", self.folder / "run.ini"] if "--config" not in options else []), *options]
        done = run("train", *options, ranks=ranks)
        self.assertIn(done.code, (2, 3) if code is EITHER else (code,), done)
        self.assertEqual((len(done.err.splitlines()), done.out), (1, ""), done)
        for part in parts:
            self.assertIn(part, done.err)
        self.assertEqual(self.tree(), before, "something was written")
        self.assertLess(done.cpu_s, LIMIT_S * (ranks or 1))


class BadInput(OneChange):
    def test_the_run_without_a_change_trains(self):
        self.prepared(None)
        began = time.monotonic()
        done = run("train", "--config", self.folder / "run.ini")
        self.assertEqual(done.code, 0, done)
        self.assertLess(time.monotonic() - began, 60)
        self.assertEqual(len((self.folder / "run" / "metrics.jsonl").read_text().splitlines()), 1)
        self.assertTrue((self.folder / "run/checkpoints/step-00000001/manifest.json").exists())

    def test_what_is_near_a_refusal_trains(self):
        for change in (drafter(mask=254), drafter(taps=[2]), split_target(lambda folder, index: None), published(lambda t, c: None)):
            shutil.rmtree(self.folder)
            self.folder.mkdir()
            self.good = self.small_run()
            self.prepared(change)
            done = run("train", "--config", self.folder / "run.ini")
            self.assertEqual(done.code, 0, done)

    def test_cut_weights_say_by_how_much(self):  # B12
        size = (self.folder / MODEL).stat().st_size
        self.prepared(cut(MODEL, lambda n: n - 100))
        self.check(3, [str(size), str(size - 100)], [])

    def test_all_missing_shards_at_once(self):  # B11
        def two_missing(folder, index):
            for part in (1, 3):
                (folder / f"model-{part:05}-of-00003.safetensors").unlink()
        self.prepared(split_target(two_missing))
        self.check(3, ["model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"], [])

    def test_id_outside_the_vocabulary(self):
        with h5py.File(self.folder / "train.h5", "r+") as f:
            f["input_ids"][25] = 256
        self.prepared(None)
        self.check(3, ["train.h5", "document 1", "position 5", "256"], [])

    def test_other_commands_refuse_alike(self):
        self.prepared(drafter(taps=[0, 4]))
        before = self.tree()
        done = run("plan", "--config", self.folder / "run.ini", "--ranks", "4")
        self.assertEqual((done.code, len(done.err.splitlines()), done.out), (3, 1, ""), done)
        self.assertIn("0..3", done.err)
        for arguments in (["frobnicate"], ["train"], ["plan", "--config", "x", "--ranks", "0"], ["train", "extra"]):
            done = run(*arguments)
            self.assertEqual((done.code, len(done.err.splitlines()), done.out), (2, 1, ""), done)
        self.assertEqual(self.tree(), before)


class TwoRanks(OneChange):
    """The same under launch/run: one line in all, whoever finds the fault."""

    def test_roles_that_do_not_add_up(self):
        self.prepared(setting(roles_targets=2, roles_drafters=2))
        self.check(2, ["roles.targets=2", "4 ranks", "2 ranks"], [], ranks=2)

    def test_a_command_that_is_none(self):
        done = run("frobnicate", ranks=2)
        self.assertEqual((done.code, len(done.err.splitlines()), done.out), (2, 1, ""), done)


def case_test(name, ranks):
    def test(self):
        code, parts, change, options = CASES[name]
        self.prepared(change)
        self.check(code, parts, options, ranks)
    return test


for number, case in enumerate(CASES):
    setattr(BadInput, f"test_{number:02}_{case.replace(' ', '_')}", case_test(case, None))
for case in ("no target.path", "unknown key", "a word for a number", "unknown option", "missing shard", "another vocabulary", "mask token outside (B6)",
             "cut weights (B12)", "run directory in use"):
    setattr(TwoRanks, f"test_{case.replace(' ', '_')}", case_test(case, 2))

unittest.main(verbosity=2)
