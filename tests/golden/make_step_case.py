#!/usr/bin/env python3
"""Makes or checks a step case: one training step of a DFlash drafter, in float64 with autograd.

  make_step_case.py --check dflash-full.safetensors      recomputes the outputs, prints the largest relative differences
  make_step_case.py --out FILE --target tiny-qwen3 [--set KEY=JSON ...]     a new case on a target's embedding and head

Written to be read, and independent of the C++: every mask entry is decided by one Python function, gradients come from
PyTorch. Keys of a case and their defaults: CASE. Layout of the file: README.md. Needs torch and numpy (2 s a case).
"""
import argparse
import json
import math
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "data", "tiny"))
import hf  # noqa: E402  (safetensors with numpy)

CASE = {
    "S": 40, "block_size": 4, "num_hidden_layers": 2, "layer_types": ["full_attention", "full_attention"],
    "sliding_window": None, "is_causal": None,  # None: sliding layers causal, full layers not
    "target_layer_ids": [0, 2], "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "intermediate_size": 128, "mask_token_id": 255, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
    "loss_type": "dflash", "loss_decay_gamma": 7.0, "dpace_alpha": 0.5, "label_mask": "prefix"}


def sees(case, anchor, layer, q_slot, k_token, k_slot):
    """May slot q_slot of the block at `anchor` see context token k_token, or (None) slot k_slot of its own block?"""
    sliding = case["layer_types"][layer] == "sliding_attention"
    causal = sliding if case["is_causal"] is None else case["is_causal"]
    if k_token is None:
        return k_slot <= q_slot or not causal
    return k_token < anchor and (not sliding or anchor + q_slot - k_token < case["sliding_window"])


def mask_of(case, layer, anchors):
    """[N*b, S + N*b] of booleans: context tokens, then the slots of all blocks."""
    b, rows = case["block_size"], []
    for i, a in enumerate(anchors):
        for j in range(b):
            context = [sees(case, a, layer, j, t, None) for t in range(case["S"])]
            slots = [o == i and sees(case, a, layer, j, None, s) for o in range(len(anchors)) for s in range(b)]
            rows.append(context + slots)
    return torch.tensor(rows)


def norm(x, gain, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * gain


def rope(x, positions, theta):
    """x [tokens, heads, d]; the first half rotates against the second."""
    d = x.shape[-1]
    angle = positions.double()[:, None] * theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    cos, sin = (f(angle).repeat(1, 2)[:, None] for f in (torch.cos, torch.sin))
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin


def forward(case, w, features, embedding, ids, anchors):
    """Hidden states of all slots [N*b, H] after the final norm."""
    b, d, eps = case["block_size"], case["head_dim"], case["rms_norm_eps"]
    heads, kv_heads = case["num_attention_heads"], case["num_key_value_heads"]
    slots = torch.full((len(anchors), b), case["mask_token_id"])
    slots[:, 0] = ids[anchors]
    context = norm(features @ w["fc.weight"].T, w["hidden_norm.weight"], eps)
    at_context = torch.arange(case["S"])
    at_slots = (anchors[:, None] + torch.arange(b)).flatten()
    z = embedding[slots.flatten()]
    for layer in range(case["num_hidden_layers"]):
        def p(name, x):  # a linear layer
            return x @ w[f"layers.{layer}.{name}.weight"].T

        def g(name):
            return w[f"layers.{layer}.{name}.weight"]

        u = norm(z, g("input_layernorm"), eps)
        q = norm(p("self_attn.q_proj", u).view(-1, heads, d), g("self_attn.q_norm"), eps)
        q = rope(q, at_slots, case["rope_theta"])
        both, at_both = torch.cat([context, u]), torch.cat([at_context, at_slots])
        k = norm(p("self_attn.k_proj", both).view(-1, kv_heads, d), g("self_attn.k_norm"), eps)
        k = rope(k, at_both, case["rope_theta"]).repeat_interleave(heads // kv_heads, 1)
        v = p("self_attn.v_proj", both).view(-1, kv_heads, d).repeat_interleave(heads // kv_heads, 1)
        score = torch.einsum("qnd,knd->nqk", q, k) / math.sqrt(d)
        score = score.masked_fill(~mask_of(case, layer, anchors.tolist()), -math.inf)
        z = z + p("self_attn.o_proj", torch.einsum("nqk,knd->qnd", score.softmax(-1), v).flatten(1))
        y = norm(z, g("post_attention_layernorm"), eps)
        z = z + p("mlp.down_proj", F.silu(p("mlp.gate_proj", y)) * p("mlp.up_proj", y))
    return norm(z, w["norm.weight"], eps)


def labels_of(case, ids, mask, anchors):
    """Labels [N, b] and which of them count: inside the document, supervised, slot 0 never."""
    labels, counts = torch.zeros(len(anchors), case["block_size"], dtype=torch.long), []
    for i, a in enumerate(anchors.tolist()):
        row, alive = [0], True
        for j in range(1, case["block_size"]):
            inside = a + j < case["S"]
            here = inside and bool(mask[a + j])
            alive = alive and here
            row.append(int(alive if case["label_mask"] == "prefix" else here))
            labels[i, j] = ids[a + j] if inside else 0
        counts.append(row)
    return labels, torch.tensor(counts, dtype=torch.float64)


def loss_of(case, logits, labels, valid):
    """dflash: sum(w nll) / sum(w), w = exp(-(j-1)/gamma). dpace: sum(w nll), w from the drafter's own confidence."""
    nll = -logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    if case["loss_type"] == "dflash":
        gamma = case["loss_decay_gamma"]
        j = torch.arange(case["block_size"], dtype=torch.float64)
        w = valid * (torch.exp(-(j - 1).clamp(min=0) / gamma) if gamma else 1)
        return (w * nll).sum() / w.sum()
    alpha = case["dpace_alpha"]
    confidence = torch.where(valid > 0, (1 - alpha) * torch.exp(-nll.detach()) + alpha, torch.ones_like(nll))
    reached = confidence.cumprod(-1) * valid
    w = reached.flip(-1).cumsum(-1).flip(-1)  # everything that a slot's success makes reachable
    return (valid * w * nll).sum()


def step(case, tensors):
    """The output tensors of a case, float64."""
    def get(name):
        return torch.from_numpy(np.array(tensors[name]))

    w = {n[2:]: get(n).double().requires_grad_() for n in tensors if n.startswith("w.")}
    ids, mask, anchors = get("in.input_ids").long(), get("in.loss_mask"), get("in.anchors").long()
    hidden = forward(case, w, get("in.features").double(), get("in.embed_tokens.weight").double(), ids, anchors)
    logits = (hidden @ get("in.lm_head.weight").double().T).view(len(anchors), case["block_size"], -1)
    labels, valid = labels_of(case, ids, mask, anchors)
    loss = loss_of(case, logits, labels, valid)
    loss.backward()
    right = (logits.argmax(-1) == labels) * valid
    out = {"out.draft_hidden": hidden, "out.loss": loss[None], "out.accuracy": (right.sum() / valid.sum())[None]}
    out.update({"g." + n: x.grad for n, x in w.items()})
    return {n: x.detach().numpy() for n, x in out.items()}


def check(path):
    """Prints |computed - stored| / |stored| (norms) of loss, hidden states and the worst gradient; True if all agree."""
    tensors, metadata = hf.read(path)
    case = {**CASE, **json.loads(metadata["case"])}
    got, worst = step(case, tensors), {}
    for name, x in got.items():
        want = tensors[name].astype(np.float64)
        distance, size = np.linalg.norm(x - want), np.linalg.norm(want)
        relative = distance / size if size else distance
        kind = "gradients" if name.startswith("g.") else name
        worst[kind] = max(worst.get(kind, (-1, "")), (relative, name))
    missing = {n for n in tensors if n[:2] in ("g.", "ou")} - set(got)
    differences = ", ".join(f"{k} {v:.1e}" + (f" ({n})" if k == "gradients" else "") for k, (v, n) in worst.items())
    print(f"{os.path.basename(path)}: loss {got['out.loss'][0]:.9f}, accuracy {got['out.accuracy'][0]:.4f}; "
          f"relative differences: {differences}")
    if missing:
        print(f"  not computed: {', '.join(sorted(missing))}")
    return not missing and worst["out.loss"][0] < 1e-6 and worst["gradients"][0] < 1e-5


def shapes_of(case, h):
    d, i = case["head_dim"], case["intermediate_size"]
    q, kv = case["num_attention_heads"] * d, case["num_key_value_heads"] * d
    shapes = {"fc": (h, len(case["target_layer_ids"]) * h), "hidden_norm": (h,), "norm": (h,)}
    for n in range(case["num_hidden_layers"]):
        shapes.update({f"layers.{n}.{k}": s for k, s in {
            "input_layernorm": (h,), "self_attn.q_proj": (q, h), "self_attn.k_proj": (kv, h),
            "self_attn.v_proj": (kv, h), "self_attn.o_proj": (h, q), "self_attn.q_norm": (d,),
            "self_attn.k_norm": (d,), "post_attention_layernorm": (h,), "mlp.gate_proj": (i, h),
            "mlp.up_proj": (i, h), "mlp.down_proj": (h, i)}.items()})
    return {f"w.{k}.weight": s for k, s in shapes.items()}


def make(path, target, settings, seed):
    """A case with random tokens, weights and features; embedding and head are the target's."""
    r = np.random.default_rng(seed)
    case = {**CASE, **settings}
    with open(os.path.join(target, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    config = config.get("text_config", config)
    weights, _ = hf.read(os.path.join(target, "model.safetensors"))
    embedding = next(x for n, x in weights.items() if n.endswith("embed_tokens.weight"))
    case.update(hidden_size=config["hidden_size"], vocab_size=len(embedding))
    tokens, h = case["S"], case["hidden_size"]
    mask = np.zeros(tokens, np.uint8)
    mask[tokens // 5:tokens // 2] = mask[3 * tokens // 5:] = 1  # two answers: the first ends in front of a gap
    candidates = [t for t in range(tokens - 1) if mask[t] and mask[t + 1]]
    tensors = {
        "in.input_ids": r.integers(0, len(embedding), tokens).astype(np.int32), "in.loss_mask": mask,
        "in.anchors": np.sort(r.choice(candidates, min(7, len(candidates)), replace=False)).astype(np.int32),
        "in.features": r.standard_normal((tokens, len(case["target_layer_ids"]) * h)).astype(np.float32),
        "in.embed_tokens.weight": embedding, "in.lm_head.weight": weights.get("lm_head.weight", embedding)}
    for name, shape in shapes_of(case, h).items():
        x = 1 + 0.25 * r.uniform(-1, 1, shape) if len(shape) == 1 else r.standard_normal(shape) / math.sqrt(shape[1])
        tensors[name] = x.astype(np.float32)
    stored = {n for n in tensors if n.startswith("w.")} | {"in.embed_tokens.weight", "in.lm_head.weight"}
    for n in stored:  # compute with what will be read back
        tensors[n] = (hf.bfloat16_bits(tensors[n]).astype("<u4") << 16).view("<f4").reshape(tensors[n].shape)
    out = step(case, tensors)
    case.update(loss=float(out["out.loss"][0]), accuracy=float(out["out.accuracy"][0]),
                grad_norm=math.sqrt(sum(float((x ** 2).sum()) for n, x in out.items() if n.startswith("g."))))
    tensors.update({n: x.astype(np.float32) for n, x in out.items()})
    hf.write(path, tensors, bfloat16=stored, case=json.dumps(case))
    print(f"{path}: loss {case['loss']:.6f}, gradient norm {case['grad_norm']:.6f}")


def setting(text):
    key, _, value = text.partition("=")
    if key not in CASE:
        raise argparse.ArgumentTypeError(f"{key}: not one of {', '.join(CASE)}")
    return key, json.loads(value)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--check", nargs="+", metavar="FILE")
    p.add_argument("--out", metavar="FILE")
    p.add_argument("--target", default=os.path.join(HERE, "tiny-qwen3"))
    p.add_argument("--set", action="append", type=setting, default=[], metavar="KEY=JSON")
    p.add_argument("--seed", type=int, default=1)
    o = p.parse_args()
    if bool(o.check) == bool(o.out):
        p.error("give --check FILE or --out FILE")
    if o.check:
        return 0 if all([check(f) for f in o.check]) else 1
    make(o.out, o.target, dict(o.set), o.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
