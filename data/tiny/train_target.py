#!/usr/bin/env python3
"""Trains the tiny target (Qwen3, 1.5 M parameters) from scratch and writes it as a Hugging Face folder.

  train_target.py --out DIR --verses bible.txt --seconds 110          one GPU, as the shipped target was trained
  train_target.py --out DIR --documents 512 --batch 8 --steps 20      a smoke run on a CPU, a minute or two

Needs torch and numpy. Documents come from make_corpus.py, made here by all cores: one a row, padded. Next-token loss
with weight 1 on answers and 0.1 elsewhere; AdamW, warm-up, constant to 40 % of the way, then linear to 0.
"""
import argparse
import json
import math
import multiprocessing
import os
import random
import shutil
import sys
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import hf
import make_corpus

HERE = os.path.dirname(os.path.abspath(__file__))
LENGTH, PAD = 288, 259
WARM_UP, CONSTANT_UNTIL, PEAK_LR = 100, 0.4, 4e-3
OUTSIDE_WEIGHT = 0.1  # loss weight of tokens outside answers
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 272, "hidden_size": 128,
    "intermediate_size": 384, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "rope_theta": 10000.0, "rope_scaling": None, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "attention_bias": False, "attention_dropout": 0.0, "max_position_embeddings": 1024, "tie_word_embeddings": True,
    "use_sliding_window": False, "sliding_window": None, "max_window_layers": 6,
    "layer_types": ["full_attention"] * 6, "initializer_range": 0.02, "bos_token_id": None, "eos_token_id": 257,
    "pad_token_id": PAD, "dtype": "bfloat16", "torch_dtype": "bfloat16", "use_cache": True}


# ---- the model, under the names of the published files


class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + CONFIG["rms_norm_eps"])).to(x.dtype) * self.weight


def rope(x, cos, sin):
    """x [B, N, T, D]; halves rotate against each other."""
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        h, d = CONFIG["hidden_size"], CONFIG["head_dim"]
        self.heads, self.kv_heads = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
        self.q_proj = nn.Linear(h, self.heads * d, bias=False)
        self.k_proj = nn.Linear(h, self.kv_heads * d, bias=False)
        self.v_proj = nn.Linear(h, self.kv_heads * d, bias=False)
        self.o_proj = nn.Linear(self.heads * d, h, bias=False)
        self.q_norm, self.k_norm = Norm(d), Norm(d)

    def forward(self, x, cos, sin):
        rows, tokens, _ = x.shape

        def split(y, heads):
            return y.view(rows, tokens, heads, -1)

        q = rope(self.q_norm(split(self.q_proj(x), self.heads)).transpose(1, 2), cos, sin)
        k = rope(self.k_norm(split(self.k_proj(x), self.kv_heads)).transpose(1, 2), cos, sin)
        v = split(self.v_proj(x), self.kv_heads).transpose(1, 2)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        q, k = q.to(v.dtype), k.to(v.dtype)
        if hasattr(F, "scaled_dot_product_attention"):
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:  # torch 1
            hidden = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)
            score = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(hidden, -math.inf)
            o = score.softmax(-1) @ v
        return self.o_proj(o.transpose(1, 2).reshape(rows, tokens, -1))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        h, i = CONFIG["hidden_size"], CONFIG["intermediate_size"]
        self.gate_proj, self.up_proj = nn.Linear(h, i, bias=False), nn.Linear(h, i, bias=False)
        self.down_proj = nn.Linear(i, h, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(CONFIG["hidden_size"]), Norm(CONFIG["hidden_size"])
        self.self_attn, self.mlp = Attention(), Mlp()

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Target(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(CONFIG["vocab_size"], CONFIG["hidden_size"])
        self.layers = nn.ModuleList(Layer() for _ in range(CONFIG["num_hidden_layers"]))
        self.norm = Norm(CONFIG["hidden_size"])
        d = CONFIG["head_dim"]
        frequency = CONFIG["rope_theta"] ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        angle = torch.outer(torch.arange(LENGTH, dtype=torch.float64), frequency).repeat(1, 2)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.04)

    def forward(self, ids):
        x, tokens = self.embed_tokens(ids), ids.shape[1]
        for layer in self.layers:
            x = layer(x, self.cos[:tokens], self.sin[:tokens])
        return self.norm(x) @ self.embed_tokens.weight.T


# ---- documents


def make_part(job):
    """One core's share: ids [n, LENGTH] uint16 and mask [n, LENGTH] uint8, padded."""
    part, documents, verses_file, share = job
    r, tokenizer = random.Random(f"target {part}"), make_corpus.byte_tokenizer()
    verses = make_corpus.read_verses(verses_file, False) if verses_file else []
    ids, mask = np.full((documents, LENGTH), PAD, np.uint16), np.zeros((documents, LENGTH), np.uint8)
    for row in range(documents):
        _, _, i, m = make_corpus.make_document(r, verses, share, LENGTH, tokenizer)
        ids[row, :len(i)], mask[row, :len(m)] = i, m
    return ids, mask


def make_documents(documents, verses_file, share):
    cores = len(os.sched_getaffinity(0))
    parts = max(cores, documents // 8192)
    jobs = [(p, documents // parts + (p < documents % parts), verses_file, share) for p in range(parts)]
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        made = pool.map(make_part, jobs, chunksize=1)
    ids, mask = (np.concatenate(x) for x in zip(*made))
    return torch.from_numpy(ids.astype(np.int16)), torch.from_numpy(mask)


# ---- training


def losses(logits, ids, mask):
    """(sum of weighted next-token losses, sum of weights, bits on answer tokens, number of answer tokens)."""
    label, answer = ids[:, 1:], mask[:, 1:].float()
    nll = F.cross_entropy(logits[:, :-1].float().flatten(0, 1), label.flatten(), reduction="none").view_as(answer)
    weight = (answer + OUTSIDE_WEIGHT * (1 - answer)) * (label != PAD)
    return (weight * nll).sum(), weight.sum(), (answer * nll).sum().detach() / math.log(2), answer.sum()


def rate(step, way):
    """Learning rate at a step, `way` of the training done."""
    fall = min(1, (1 - way) / (1 - CONSTANT_UNTIL))
    return PEAK_LR * min(1, (step + 1) / WARM_UP) * max(fall, 0)


def train(model, ids, mask, o, device):
    decayed = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}],
                                  lr=PEAK_LR, betas=(0.9, 0.97))
    start, step = time.monotonic(), 0
    order = torch.randperm(len(ids))
    while True:
        way = step / o.steps if o.steps else (time.monotonic() - start) / o.seconds
        if way >= 1:
            return
        rows = order[torch.arange(step * o.batch, (step + 1) * o.batch) % len(order)]
        batch, answers = ids[rows].to(device).long(), mask[rows].to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = model(batch)
        loss, weight, bits, count = losses(logits, batch, answers)
        optimizer.zero_grad(set_to_none=True)
        (loss / weight).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate(step, way)
        optimizer.step()
        step += 1
        if step in (1, 5, 10, 20, 50) or step % 100 == 0:
            print(f"step {step}  {100 * way:3.0f} %  bits per answer byte {(bits / count).item():.3f}  "
                  f"lr {group['lr']:.2e}  {step / (time.monotonic() - start):.1f} steps/s", file=sys.stderr)


def save(model, folder):
    """config.json, model.safetensors in bfloat16 and the tokenizer files."""
    os.makedirs(folder, exist_ok=True)
    tensors = {"model." + n: p.detach().float().cpu().numpy() for n, p in model.named_parameters()}
    hf.write(os.path.join(folder, "model.safetensors"), tensors, bfloat16=set(tensors))
    for name, value in (("config.json", CONFIG),
                        ("generation_config.json", {"eos_token_id": 257, "pad_token_id": PAD, "do_sample": False})):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(value, f, indent=1)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        source = os.path.join(HERE, "target", name)
        if os.path.abspath(source) != os.path.abspath(os.path.join(folder, name)):
            shutil.copyfile(source, os.path.join(folder, name))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True, help="folder to write")
    p.add_argument("--verses", metavar="FILE", help="output of `bible -f gen1:1-rev22:21`")
    p.add_argument("--verse-share", type=float, default=0.25)
    p.add_argument("--documents", type=int, default=600000)
    p.add_argument("--batch", type=int, default=256)
    p.add_argument("--seconds", type=float, default=110, help="training time, where --steps is not given")
    p.add_argument("--steps", type=int, default=0)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--seed", type=int, default=1)
    o = p.parse_args()
    torch.manual_seed(o.seed)
    device, start = torch.device(o.device), time.monotonic()
    ids, mask = make_documents(o.documents, o.verses, o.verse_share)
    print(f"{o.documents} documents, {int((ids != PAD).sum())} tokens, {int(mask.sum())} supervised, made in "
          f"{time.monotonic() - start:.0f} s", file=sys.stderr)
    model = Target().to(device)
    print(f"{sum(p.numel() for p in model.parameters())} parameters on {device}", file=sys.stderr)
    train(model, ids, mask, o, device)
    save(model, o.out)
    print(f"written to {o.out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
