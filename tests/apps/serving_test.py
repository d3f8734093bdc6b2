"""A trained drafter as servers take it: its folder, and the drafter and the decode loop written a second time in numpy.

The model below follows the public definition of DFlash, in float64, from the folder alone (config.json,
model.safetensors) and the target's: what it drafts, and the cycles of its loop, must be those of `decode`.
"""
import json
import shutil
import sys
import unittest

import numpy as np

from program import GOLDEN, ROOT, Folder, hf, run

sys.path.insert(0, str(ROOT / "data/tiny"))
import answer  # noqa: E402  (the tiny target in numpy)

TARGET, TRAINED, PROMPTS = ROOT / "data/tiny/target", GOLDEN / "tiny-drafter", ROOT / "data/tiny/prompts.h5"
END = 257


def rms(x, gain, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain


def rotate(x, position, theta):  # x [T, heads, d]
    d = x.shape[-1]
    angle = np.concatenate([np.outer(position, theta ** (-np.arange(0, d, 2) / d))] * 2, -1)[:, None]
    low, high = np.split(x, 2, -1)
    return x * np.cos(angle) + np.concatenate([-high, low], -1) * np.sin(angle)


class Server:
    """Loads a drafter's folder as the public loaders do: keys of config.json, bare tensor names."""

    def __init__(self, folder, target):
        c = json.loads((folder / "config.json").read_text())
        w, meta = hf.read(folder / "model.safetensors")
        assert meta["format"] == "pt" and c["architectures"] == ["DFlashDraftModel"]
        self.c, self.w = c, {n: x.astype(np.float64) for n, x in w.items()}
        t, _ = hf.read(target / "model.safetensors")
        self.embed = t["model.embed_tokens.weight"].astype(np.float64)
        self.head = t.get("lm_head.weight", t["model.embed_tokens.weight"]).astype(np.float64)
        self.block = c["dflash_config"].get("block_size", c["block_size"])
        self.taps, self.mask = c["dflash_config"]["target_layer_ids"], c["dflash_config"]["mask_token_id"]

    def __call__(self, features, token):
        """Logits [block, V] of the block that begins with `token` after features [tokens, taps*H]."""
        c, w, eps = self.c, self.w, self.c["rms_norm_eps"]
        heads, kv_heads, d, start = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], len(features)
        context = rms(features @ w["fc.weight"].T, w["hidden_norm.weight"], eps)
        place, block_place = np.arange(start), start + np.arange(self.block)
        z = self.embed[[token] + [self.mask] * (self.block - 1)]
        for i, kind in enumerate(c["layer_types"]):
            at = f"layers.{i}."
            u = rms(z, w[at + "input_layernorm.weight"], eps)

            def keys(x, where):
                k = (x @ w[at + "self_attn.k_proj.weight"].T).reshape(-1, kv_heads, d)
                return rotate(rms(k, w[at + "self_attn.k_norm.weight"], eps), where, c["rope_theta"])

            q = (u @ w[at + "self_attn.q_proj.weight"].T).reshape(-1, heads, d)
            q = rotate(rms(q, w[at + "self_attn.q_norm.weight"], eps), block_place, c["rope_theta"])
            k = np.concatenate([keys(context, place), keys(u, block_place)])
            v = (np.concatenate([context, u]) @ w[at + "self_attn.v_proj.weight"].T).reshape(-1, kv_heads, d)
            sliding = kind == "sliding_attention"
            causal = c.get("is_causal", c["dflash_config"].get("causal", sliding))
            where = np.concatenate([place, block_place])
            seen = np.ones((self.block, len(where)), bool)
            if sliding:
                seen &= block_place[:, None] - where < c["sliding_window"]
            if causal:
                seen[:, start:] &= block_place[:, None] >= block_place
            group = heads // kv_heads
            score = np.einsum("qhd,khd->hqk", q, np.repeat(k, group, 1)) / np.sqrt(d)
            score = np.where(seen, score, -np.inf)
            p = np.exp(score - score.max(-1, keepdims=True))
            o = np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), np.repeat(v, group, 1))
            z = z + o.reshape(self.block, -1) @ w[at + "self_attn.o_proj.weight"].T
            y = rms(z, w[at + "post_attention_layernorm.weight"], eps)
            gate, up = (y @ w[at + f"mlp.{n}_proj.weight"].T for n in ("gate", "up"))
            z = z + (gate / (1 + np.exp(-gate)) * up) @ w[at + "mlp.down_proj.weight"].T
        return rms(z, w["norm.weight"], eps) @ self.head.T


class Target(answer.Target):
    """The numpy target of data/tiny, which keeps its streams."""

    def __init__(self, taps):
        super().__init__(str(TARGET), 1)
        self.taps, self.streams = taps, []

    def step(self, ids, position, rows):
        # Stream after layer l = input of the norm of layer l + 1: seen where that norm is taken.
        seen = {}
        plain = self.norm

        def norm(x, name):
            if name.endswith("input_layernorm.weight"):
                seen[int(name.split(".")[1]) - 1] = x
            return plain(x, name)
        self.norm = norm
        try:
            logits = super().step(ids, position, rows)
        finally:
            del self.norm
        self.streams.append(np.concatenate([seen[t][0] for t in self.taps]))
        return logits[0]


def bf16(x):
    return (hf.bfloat16_bits(x).astype("<u4") << 16).view("<f4").astype(np.float64)


def serve(server, prompt, most):
    """The loop of a server, greedily: (tokens, advance of each cycle)."""
    target = Target(server.taps)
    row = np.array([0])
    for p, token in enumerate(prompt):
        logits = target.step([token], p, row)
    out, advances, start = [int(logits.argmax())], [], len(prompt)
    while out[-1] != END and len(out) < most:
        drafts = server(bf16(np.stack(target.streams[:start])), out[-1]).argmax(-1)[1:].tolist()
        block, accepted = [out[-1]] + drafts, 0
        for j, token in enumerate(block):  # verification, token by token: nothing rejected is ever run
            choice = int(target.step([token], start + j, row).argmax())
            if len(out) < most and out[-1] != END:
                out.append(choice)
            if j + 1 == len(block) or drafts[j] != choice:
                break
            accepted += 1
        advances.append(accepted + 1)
        start += accepted + 1
    return out, advances


class Serving(Folder):
    def trained(self, *settings):
        options = ["train", "--config", ROOT / "configs/tiny.ini", "--device", "cpu"]
        for pair in (f"log.dir={self.folder}/run", "eval.tokens=", "eval.prompts=", "checkpoint.every_steps=0", *settings):
            options += ["--set", pair]
        done = run(*options)
        self.assertEqual(done.code, 0, done)
        return next((self.folder / "run/checkpoints").glob("step-*")) / "drafter"

    def decode(self, drafter, *options):
        done = run("decode", "--target", TARGET, "--drafter", drafter, "--prompts", PROMPTS, "--device", "cpu", "--json", *options)
        self.assertEqual(done.code, 0, done)
        return json.loads(done.out)

    def warm(self, folder):
        """A run from `folder` that changes nothing: its checkpoint."""
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        return self.trained("drafter.config=", f"drafter.init_from={folder}", "train.steps=1", "train.lr=1e-30", "train.warmup_ratio=0")

    def tensors(self, folder):
        return {n: hf.bfloat16_bits(x).tobytes() for n, x in hf.read(folder / "model.safetensors")[0].items()}

    def test_the_loop_of_a_server_takes_the_same_cycles(self):
        got = self.decode(TRAINED, "--max-new", 24)["responses"]
        server = Server(TRAINED, TARGET)
        import h5py
        with h5py.File(PROMPTS) as f:
            at, ids = f["doc_offsets"][:], f["input_ids"][:].tolist()
        moved = 0
        for i in range(0, 100, 12):
            out, advances = serve(server, ids[at[i]:at[i + 1]], 24)
            self.assertEqual(out, got[i]["ids"])
            moved += (len(advances), sum(advances)) != (got[i]["cycles"], got[i]["accepted_plus_one"])
        self.assertLessEqual(moved, 1)  # where two logits nearly tie

    def test_logits_of_a_block(self):
        """`step` on the features of a document, against the numpy model."""
        tensors, _ = hf.read(GOLDEN / "dflash-trained.safetensors")
        done = run("step", "--case", GOLDEN / "dflash-trained.safetensors", "--out", self.folder / "out.safetensors", "--device", "cpu")
        self.assertEqual(done.code, 0, done)
        hidden = hf.read(self.folder / "out.safetensors")[0]["out.draft_hidden"]
        server = Server(TRAINED, TARGET)
        for name, x in server.w.items():  # the case is this drafter
            np.testing.assert_array_equal(x, tensors["w." + name])
        ids, features = tensors["in.input_ids"], tensors["in.features"].astype(np.float64)
        for i, anchor in enumerate(tensors["in.anchors"]):
            want = server(features[:anchor], ids[anchor])
            got = hidden[i * server.block:(i + 1) * server.block].astype(np.float64) @ server.head.T
            self.assertLessEqual(np.abs(got - want)[1:].max(), 1e-4, anchor)

    def test_a_checkpoint_is_such_a_folder(self):
        folder = self.trained("train.steps=2")
        c = json.loads((folder / "config.json").read_text())
        for key, value in {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": 8, "num_target_layers": 6, "rope_theta": 10000,
                           "rope_scaling": None, "tie_word_embeddings": False, "dtype": "bfloat16", "torch_dtype": "bfloat16", "vocab_size": 272,
                           "layer_types": ["full_attention"] * 2, "use_sliding_window": False, "attention_bias": False}.items():
            self.assertEqual((key, c[key]), (key, value))
        self.assertEqual(c["dflash_config"], {"block_size": 8, "mask_token_id": 258, "target_layer_ids": [0, 2]})
        self.assertEqual(c["rope_parameters"], {"rope_type": "default", "rope_theta": 10000})
        self.assertFalse({"auto_map", "partial_rotary_factor", "mrope_section"} & set(c))
        names = set(hf.read(folder / "model.safetensors")[0])
        self.assertEqual(len(names), 3 + 11 * 2)
        self.assertFalse([n for n in names if n.startswith("model.") or "embed" in n or "lm_head" in n])
        Server(folder, TARGET)
        try:
            import safetensors.numpy  # noqa: F401
            import transformers
        except ImportError:
            print("safetensors and transformers are not installed: their own readers were not tried")
            return
        from safetensors import safe_open
        with safe_open(str(folder / "model.safetensors"), "pt" if "torch" in sys.modules else "np") as f:
            self.assertEqual((set(f.keys()), f.metadata()), (names, {"format": "pt"}))
        config = transformers.AutoConfig.from_pretrained(str(folder))
        self.assertEqual((type(config).__name__, config.hidden_size, config.num_hidden_layers, config.head_dim), ("Qwen3Config", 128, 2, 64))

    def test_warm_start_keeps_every_byte(self):
        self.assertEqual(self.tensors(self.warm(TRAINED)), self.tensors(TRAINED))

    def test_drafters_of_other_trainers(self):
        want = self.decode(TRAINED, "--documents", 10, "--max-new", 20)["responses"]
        c = json.loads((TRAINED / "config.json").read_text())
        w, _ = hf.read(TRAINED / "model.safetensors")
        t, _ = hf.read(TARGET / "model.safetensors")
        embed = t["model.embed_tokens.weight"]

        def folder(name, config, tensors):
            path = self.folder / name
            path.mkdir()
            (path / "config.json").write_text(json.dumps(config))
            hf.write(str(path / "model.safetensors"), tensors, bfloat16=set(tensors))
            return path
        layers = {k: v for k, v in c.items() if k not in ("architectures", "block_size", "dflash_config", "num_target_layers")}
        speculators = folder("speculators", {
            "speculators_model_type": "dflash", "architectures": ["DFlashSpeculator"], "transformer_layer_config": layers, "block_size": 8,
            "aux_hidden_state_layer_ids": [1, 3], "mask_token_id": 258, "draft_vocab_size": 272, "sliding_window_non_causal": False,
            "sample_from_anchor": False, "speculators_config": {"algorithm": "dflash"}},
            {**w, "embed_tokens.weight": embed, "lm_head.weight": embed})
        own = {"fc.weight": "context_proj.weight", "hidden_norm.weight": "context_norm.weight", "norm.weight": "final_norm.weight"}
        torchspec = folder("torchspec", {**c, "model_type": "dflash"}, {**{own.get(n, n): x for n, x in w.items()}, "embed_tokens.weight": embed})
        prefixed = folder("prefixed", c, {"model." + n: x for n, x in w.items()})
        for path in (speculators, torchspec, prefixed):
            with self.subTest(path.name):
                self.assertEqual(self.decode(path, "--documents", 10, "--max-new", 20)["responses"], want)
                warm = self.warm(path)
                self.assertEqual(self.tensors(warm), self.tensors(TRAINED))
                config = json.loads((warm / "config.json").read_text())
                self.assertEqual((config["dflash_config"]["target_layer_ids"], config["num_target_layers"]), ([0, 2], 6))
        reduced = json.loads((speculators / "config.json").read_text())
        reduced["draft_vocab_size"] = 128
        (speculators / "config.json").write_text(json.dumps(reduced))
        done = run("decode", "--target", TARGET, "--drafter", speculators, "--prompts", PROMPTS, "--device", "cpu")
        self.assertEqual((done.code, len(done.err.splitlines()), "reduced vocabulary" in done.err), (3, 1, True), done)


unittest.main(verbosity=2)
