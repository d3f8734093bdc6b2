#!/usr/bin/env python3
"""The target answers conversations: greedily, turn by turn, in float32 with numpy.

  answer.py --target target --input train.jsonl --out answered.jsonl

Reads the user turns of conversations (make_corpus.py) and writes token lines for data/prepare, with mask 1 on the
answers. All conversations of a batch advance together, one position at a time: where the text is given the next token
is forced, in an answer it is the target's choice. So nothing is padded and every position costs one product.
"""
import argparse
import json
import os
import sys
import time

import numpy as np

import hf

END, NEWLINE = 257, 10
MAX_TOKENS = 288


class Target:
    """A Qwen3 decoder with its key/value cache for `rows` conversations."""

    def __init__(self, folder, rows):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            c = json.load(f)
        tensors, _ = hf.read(os.path.join(folder, "model.safetensors"))
        self.w = {n.removeprefix("model."): x for n, x in tensors.items()}
        self.layers, self.eps = c["num_hidden_layers"], c["rms_norm_eps"]
        self.heads, self.kv_heads, self.dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.head = self.w["embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"]
        self.frequency = c["rope_theta"] ** (-np.arange(0, self.dim, 2) / self.dim)
        shape = (self.layers, rows, self.kv_heads, MAX_TOKENS, self.dim)
        self.k, self.v = np.empty(shape, np.float32), np.empty(shape, np.float32)

    def norm(self, x, name):
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + self.eps) * self.w[name]

    def rope(self, x, position):
        angle = np.concatenate([position * self.frequency] * 2).astype(np.float32)
        low, high = np.split(x, 2, -1)
        return x * np.cos(angle) + np.concatenate([-high, low], -1) * np.sin(angle)

    def step(self, ids, position, rows):
        """Logits [rows, V] after `ids` [rows], which all stand at `position`; `rows` are their cache rows."""
        x, n = self.w["embed_tokens.weight"][ids], len(ids)
        for i in range(self.layers):
            at = f"layers.{i}."
            u = self.norm(x, at + "input_layernorm.weight")
            q, k, v = (u @ self.w[f"{at}self_attn.{p}_proj.weight"].T for p in "qkv")
            q = self.rope(self.norm(q.reshape(n, self.heads, self.dim), at + "self_attn.q_norm.weight"), position)
            k = self.rope(self.norm(k.reshape(n, self.kv_heads, self.dim), at + "self_attn.k_norm.weight"), position)
            self.k[i, rows, :, position], self.v[i, rows, :, position] = k, v.reshape(n, self.kv_heads, self.dim)
            keys, values = self.k[i, rows, :, :position + 1], self.v[i, rows, :, :position + 1]
            q = q.reshape(n, self.kv_heads, -1, self.dim)
            score = q @ keys.swapaxes(-1, -2) / np.sqrt(self.dim).astype(np.float32)
            p = np.exp(score - score.max(-1, keepdims=True))
            o = (p / p.sum(-1, keepdims=True)) @ values
            x = x + o.reshape(n, -1) @ self.w[at + "self_attn.o_proj.weight"].T
            y = self.norm(x, at + "post_attention_layernorm.weight")
            gate, up = (y @ self.w[f"{at}mlp.{p}_proj.weight"].T for p in ("gate", "up"))
            x = x + (gate / (1 + np.exp(-gate)) * up) @ self.w[at + "mlp.down_proj.weight"].T
        return self.norm(x, "norm.weight") @ self.head.T


class Conversation:
    """Tokens so far, what is still forced, and the questions that follow."""

    def __init__(self, questions):
        self.questions = list(questions)
        self.ids, self.mask, self.forced = [], [], []
        self.ask()
        self.take(None)

    def ask(self):
        text = f"user\n{self.questions.pop(0)}".encode()
        self.forced += [(t, 0) for t in [256, *text, END, NEWLINE, 256, *b"assistant\n"]]

    def take(self, choice):
        """Appends the next token: the forced one, or the target's choice."""
        token, supervised = self.forced.pop(0) if self.forced else (choice, 1)
        self.ids.append(token)
        self.mask.append(supervised)
        if token == END and supervised:
            self.forced.append((NEWLINE, 1))
            if self.questions:
                self.ask()

    def done(self):
        ended = not self.forced and not self.questions and self.ids[-2:] == [END, NEWLINE] and self.mask[-1]
        return ended or len(self.ids) == MAX_TOKENS


def answer(target, conversations):
    for position in range(MAX_TOKENS):
        rows = np.array([r for r, c in enumerate(conversations) if not c.done()])
        if not len(rows):
            return
        live = [conversations[r] for r in rows]
        logits = target.step([c.ids[position] for c in live], position, rows)
        for c, choice in zip(live, logits.argmax(-1)):
            c.take(int(choice))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--target", required=True, help="folder with config.json and model.safetensors")
    p.add_argument("--input", required=True, help="conversations as JSON lines")
    p.add_argument("--out", required=True, help="token lines")
    p.add_argument("--batch", type=int, default=64)
    o = p.parse_args()
    with open(o.input, encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    target, start = Target(o.target, o.batch), time.monotonic()
    same = asked = 0
    with open(o.out + ".partial", "w", encoding="utf-8") as f:
        for at in range(0, len(lines), o.batch):
            batch = lines[at:at + o.batch]
            made = [Conversation([m["content"] for m in x["messages"] if m["role"] == "user"]) for x in batch]
            answer(target, made)
            for x, c in zip(batch, made):
                more = {"family": x["family"]} if "family" in x else {}
                f.write(json.dumps({"input_ids": c.ids, "loss_mask": c.mask, **more}, separators=(",", ":")) + "\n")
                reference = [m["content"] for m in x["messages"] if m["role"] == "assistant"]
                if reference and x.get("family") != "verse":
                    text = bytes(t if t < 256 else 0 for t, m in zip(c.ids, c.mask) if m).split(b"\0\n")[:-1]
                    asked += len(reference)
                    same += sum(a == b.encode() for a, b in zip(text, reference))
            print(f"{at + len(batch)} of {len(lines)} documents, {time.monotonic() - start:.0f} s", file=sys.stderr)
    os.rename(o.out + ".partial", o.out)
    if asked:
        print(f"{same} of {asked} dialogue answers equal the computed ones", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
