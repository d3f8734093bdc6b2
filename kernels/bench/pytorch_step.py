#!/usr/bin/env python3
"""The step that `bench drafter` times, as a PyTorch trainer makes it: compiled flex attention, the rest op by op in bf16, AdamW on fp32 masters. For a comparison on one card.

  pytorch_step.py [--drafter configs/qwen3-8b-drafter.json] [--tokens 4096] [--anchors 512]    times of a step, a JSON line like those of `bench drafter`
  pytorch_step.py --attention                                            block attention alone in four shapes, 32/8 heads of 128, and the masks' building
  pytorch_step.py --check tests/golden/dflash-full.safetensors ...       on the CPU in fp32, against a golden step: the largest relative differences

Made the way public trainers are (sgl-project/SpecForge at a6b6b02, whose BF16Optimizer it follows): keys and values of context and blocks projected apart and joined, the loss by
chunks of 128 blocks whose logits are computed again in the backward pass, masks built for every step. Random features and weights, one document, all of it supervised.
Needs torch 2.11, numpy, and a CUDA device but for --check.
"""
import argparse
import json
import math
import pathlib
import statistics
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "data" / "tiny"))
import hf  # noqa: E402  (safetensors with numpy)

LOSS_BLOCKS, GAMMA = 128, 7.0
SHAPES = ((4096, None), (4096, 2048), (16384, None), (16384, 2048))  # of --attention: tokens, window


def sees(anchors, block, tokens, window, causal):
    """The rule of the mask, on indices as flex attention passes them; keys are the context, then the slots of all blocks."""
    def rule(b, h, q, k):
        anchor, slot = anchors[q // block], q % block
        context = (k < tokens) & (k < anchor)
        if window is not None:
            context = context & (anchor + slot - k < window)
        own = (k >= tokens) & ((k - tokens) // block == q // block)
        if causal:
            own = own & ((k - tokens) % block <= slot)
        return context | own
    return rule


class FlexAttention:
    def __init__(self):
        self.compiled = torch.compile(flex_attention, dynamic=False)

    def mask(self, rule, queries, keys, device):
        return create_block_mask(rule, None, None, queries, keys, device=device)

    def __call__(self, q, k, v, mask):
        return self.compiled(q[None], k[None], v[None], block_mask=mask, enable_gqa=True)[0]


class DenseAttention:
    def mask(self, rule, queries, keys, device):
        return rule(0, 0, torch.arange(queries, device=device)[:, None], torch.arange(keys, device=device)[None])

    def __call__(self, q, k, v, mask):
        k, v = (x.repeat_interleave(q.shape[0] // x.shape[0], 0) for x in (k, v))
        score = (q @ k.transpose(1, 2)) / math.sqrt(q.shape[-1])
        return score.masked_fill(~mask, -math.inf).softmax(-1) @ v


def norm(x, gain, eps):
    y = x.float()
    return gain * (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def rotated(x, cos, sin):
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat((-high, low), -1) * sin


class Step:
    """One step: `hidden`, then `loss`. c: keys as in a drafter's config.json; w: weights by their published names, embedding and head frozen."""

    def __init__(self, c, w, embedding, head, attention):
        self.c, self.w, self.embedding, self.head, self.attention = c, w, embedding, head, attention
        self.eps, self.d, self.block = c["rms_norm_eps"], c["head_dim"], c["block_size"]

    def angles(self, positions):
        f = self.c["rope_theta"] ** (-torch.arange(0, self.d, 2, device=positions.device, dtype=torch.float32) / self.d)
        angle = (positions.float()[:, None] * f).repeat(1, 2)
        return angle.cos().to(self.embedding.dtype), angle.sin().to(self.embedding.dtype)

    def masks(self, anchors, tokens):
        out = {}
        for kind in set(self.c["layer_types"]):
            sliding = kind == "sliding_attention"
            causal = sliding if self.c.get("is_causal") is None else self.c["is_causal"]
            rule = sees(anchors, self.block, tokens, self.c["sliding_window"] if sliding else None, causal)
            slots = len(anchors) * self.block
            out[kind] = self.attention.mask(rule, slots, tokens + slots, anchors.device)
        return out

    def hidden(self, features, ids, anchors):
        w, eps, tokens = self.w, self.eps, len(ids)
        masks = self.masks(anchors, tokens)
        slots = torch.full((len(anchors), self.block), self.c["mask_token_id"], device=ids.device)
        slots[:, 0] = ids[anchors]
        at_slots = (anchors[:, None] + torch.arange(self.block, device=ids.device)).flatten()
        cos, sin = self.angles(torch.cat((torch.arange(tokens, device=ids.device), at_slots)))
        context = norm(F.linear(features, w["fc.weight"]), w["hidden_norm.weight"], eps)
        z = F.embedding(slots.flatten(), self.embedding)

        def heads(x):
            return x.view(len(x), -1, self.d).transpose(0, 1)

        for layer in range(self.c["num_hidden_layers"]):
            def of(name):
                return w[f"layers.{layer}.{name}.weight"]

            u = norm(z, of("input_layernorm"), eps)
            q = rotated(norm(heads(F.linear(u, of("self_attn.q_proj"))), of("self_attn.q_norm"), eps), cos[tokens:], sin[tokens:])
            k, v = (torch.cat((F.linear(context, p), F.linear(u, p))) for p in (of("self_attn.k_proj"), of("self_attn.v_proj")))
            k = rotated(norm(heads(k), of("self_attn.k_norm"), eps), cos, sin)
            seen = self.attention(q, k, heads(v), masks[self.c["layer_types"][layer]])
            z = z + F.linear(seen.transpose(0, 1).flatten(1), of("self_attn.o_proj"))
            y = norm(z, of("post_attention_layernorm"), eps)
            z = z + F.linear(F.silu(F.linear(y, of("mlp.gate_proj"))) * F.linear(y, of("mlp.up_proj")), of("mlp.down_proj"))
        return norm(z, w["norm.weight"], eps)

    def loss(self, hidden, ids, supervised, anchors):
        """sum(w nll) / sum(w), w = exp(-(slot - 1) / gamma) where a label counts."""
        slot = torch.arange(self.block, device=ids.device)
        at = anchors[:, None] + slot
        inside = at < len(ids)
        labels = ids[at.clamp(max=len(ids) - 1)]
        counts = (inside & supervised[at.clamp(max=len(ids) - 1)]) | (slot == 0)
        if self.c.get("label_mask") == "prefix":  # up to the first that is not supervised
            counts = counts.cumprod(-1)
        weight = counts * (slot > 0) * torch.exp(-(slot - 1).clamp(min=0).float() / GAMMA)

        def chunk(h, label, w):
            nll = F.cross_entropy(F.linear(h, self.head), label, reduction="none")
            return (nll.float() * w).sum()

        total, rows = 0, LOSS_BLOCKS * self.block
        for h, label, w in zip(hidden.split(rows), labels.flatten().split(rows), weight.flatten().split(rows)):
            total = total + checkpoint(chunk, h, label, w, use_reentrant=False)
        return total / weight.sum()


class Bf16AdamW:
    """fp32 masters beside bf16 weights: gradients cast, clipped, AdamW, weights rounded from the masters."""

    def __init__(self, weights, lr=6e-4):
        self.weights, self.masters = weights, [w.detach().float() for w in weights]
        self.adamw = torch.optim.AdamW(self.masters, lr=lr, weight_decay=0.0)

    @torch.no_grad()
    def step(self):
        for master, w in zip(self.masters, self.weights):
            master.grad = w.grad.float()
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.adamw.step()
        self.adamw.zero_grad()
        for master, w in zip(self.masters, self.weights):
            w.copy_(master)
            w.grad = None


def weight_shapes(c):
    h, i, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    shapes = {"fc": (h, len(c["dflash_config"]["target_layer_ids"]) * h), "hidden_norm": (h,), "norm": (h,)}
    for n in range(c["num_hidden_layers"]):
        for name, shape in {"input_layernorm": (h,), "self_attn.q_proj": (q, h), "self_attn.k_proj": (kv, h), "self_attn.v_proj": (kv, h), "self_attn.o_proj": (h, q),
                            "self_attn.q_norm": (d,), "self_attn.k_norm": (d,), "post_attention_layernorm": (h,), "mlp.gate_proj": (i, h), "mlp.up_proj": (i, h),
                            "mlp.down_proj": (h, i)}.items():
            shapes[f"layers.{n}.{name}"] = shape
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def random_step(c, tokens, blocks):
    def make(shape, scale):
        return (torch.randn(shape, device="cuda") * scale).to(torch.bfloat16)

    w = {}
    for name, shape in weight_shapes(c).items():
        w[name] = (torch.ones(shape, device="cuda", dtype=torch.bfloat16) if len(shape) == 1 else make(shape, 0.02)).requires_grad_()
    c = {**c, "mask_token_id": c["dflash_config"]["mask_token_id"]}
    frozen = [make((c["vocab_size"], c["hidden_size"]), 0.02) for _ in range(2)]
    step = Step(c, w, *frozen, FlexAttention())
    features = make((tokens, w["fc.weight"].shape[1]), 1)
    ids = torch.randint(c["vocab_size"], (tokens,), device="cuda")
    anchors = torch.randperm(tokens - 1, device="cuda")[:blocks].sort().values
    return step, features, ids, anchors


def timed(parts, repeat, warmup):
    """Medians in ms of functions that are called one after the other."""
    found = []
    for _ in range(warmup + repeat):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(parts) + 1)]
        marks[0].record()
        for part, mark in zip(parts, marks[1:]):
            part()
            mark.record()
        torch.cuda.synchronize()
        found.append([a.elapsed_time(b) for a, b in zip(marks, marks[1:])] + [marks[0].elapsed_time(marks[-1])])
    return [statistics.median(column) for column in zip(*found[warmup:])]


def about(o):
    return {"repeats": o.repeat, "torch": torch.__version__, "device": torch.cuda.get_device_name()}


def time_step(o):
    c = json.loads(pathlib.Path(o.drafter).read_text())
    step, features, ids, anchors = random_step(c, o.tokens, o.anchors)
    optimizer, held = Bf16AdamW(list(step.w.values())), {}
    supervised = torch.ones(len(ids), dtype=torch.bool, device="cuda")

    def forward():
        held["loss"] = step.loss(step.hidden(features, ids, anchors), ids, supervised, anchors)

    ms = timed((forward, lambda: held.pop("loss").backward(), optimizer.step), o.repeat, o.warmup)
    print(json.dumps({"bench": "pytorch", "op": "step", "model": pathlib.Path(o.drafter).stem.removesuffix("-drafter"), "tokens": o.tokens, "blocks": o.anchors, "median_ms": ms[3],
                      "forward_ms": ms[0], "backward_ms": ms[1], "optimizer_ms": ms[2], "tokens_per_s": o.tokens / ms[3] * 1e3,
                      "peak_bytes": torch.cuda.max_memory_allocated(), **about(o)}), flush=True)


def time_attention(o):
    """Calls back to back, as `attention_hopper_check --bench` has them: a call alone is shorter than what queues it. The backward pass is that of both less the forward pass."""
    attention, block, calls = FlexAttention(), 16, 20
    for tokens, window in SHAPES:
        def random(heads, n):
            return torch.randn(heads, n, 128, device="cuda", dtype=torch.bfloat16).requires_grad_()

        anchors = torch.randperm(tokens - 1, device="cuda")[:o.anchors].sort().values
        slots = o.anchors * block
        q, k, v = random(32, slots), random(8, tokens + slots), random(8, tokens + slots)
        dout = torch.randn(32, slots, 128, device="cuda", dtype=torch.bfloat16)
        rule, held = sees(anchors, block, tokens, window, window is not None), {}

        def build():
            held["mask"] = attention.mask(rule, slots, tokens + slots, "cuda")

        def forward():
            for _ in range(calls):
                attention(q, k, v, held["mask"])

        def both():
            for _ in range(calls):
                torch.autograd.grad(attention(q, k, v, held["mask"]), (q, k, v), dout)

        mask, fwd, fwd_bwd, _ = timed((build, forward, both), o.repeat, o.warmup)
        print(json.dumps({"bench": "pytorch", "op": "block_attention", "shape": f"S={tokens}" + (f" window {window}" if window else ""), "heads": "32/8", "head_dim": 128,
                          "anchors": o.anchors, "block": block, "mask_ms": mask, "fwd_ms": fwd / calls, "bwd_ms": (fwd_bwd - fwd) / calls, **about(o)}), flush=True)


def check(path):
    tensors, metadata = hf.read(path)
    c = {"rms_norm_eps": 1e-6, **json.loads(metadata["case"])}
    if c["loss_type"] != "dflash" or c["loss_decay_gamma"] != GAMMA:
        sys.exit(f"{path}: another loss than the one that is here")

    def get(name):
        return torch.from_numpy(np.array(tensors[name]))

    w = {n[2:]: get(n).float().requires_grad_() for n in tensors if n.startswith("w.")}
    step = Step(c, w, get("in.embed_tokens.weight").float(), get("in.lm_head.weight").float(), DenseAttention())
    ids, supervised, anchors = get("in.input_ids").long(), get("in.loss_mask") > 0, get("in.anchors").long()
    loss = step.loss(step.hidden(get("in.features").float(), ids, anchors), ids, supervised, anchors)
    loss.backward()
    off = abs(loss.item() - float(tensors["out.loss"][0])) / float(tensors["out.loss"][0])
    worst = max((np.linalg.norm(x.grad.numpy() - tensors["g." + n]) / np.linalg.norm(tensors["g." + n]), n) for n, x in w.items())
    print(f"{path}: relative differences: loss {off:.1e}, gradients {worst[0]:.1e} ({worst[1]})")
    return off < 1e-5 and worst[0] < 1e-4


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--check", nargs="+", metavar="FILE")
    p.add_argument("--attention", action="store_true")
    p.add_argument("--drafter", default=ROOT / "configs/qwen3-8b-drafter.json")
    p.add_argument("--tokens", type=int, default=4096)
    p.add_argument("--anchors", type=int, default=512)
    p.add_argument("--repeat", type=int, default=10)
    p.add_argument("--warmup", type=int, default=3)
    o = p.parse_args()
    if o.check:
        return 0 if all([check(f) for f in o.check]) else 1
    torch.manual_seed(1)
    (time_attention if o.attention else time_step)(o)
    return 0


if __name__ == "__main__":
    sys.exit(main())
