#!/usr/bin/env python3
"""What one GPU is to show, in one run: kernels/README.md's first table. Parts that can be run one by one and again:

  tests/gpus/one_gpu.py --build DIR --out FOLDER [PART...]     all parts unless named; one that has its result in FOLDER is left out
  tests/gpus/one_gpu.py --dry ...                              the same script on the CPU with the tiny models: tries the script, not the machine

attention: block attention of the drafter, every shape. steps: optimizer steps of three drafters. capture: two targets. busy: a drafter that trains from feature shards,
beside the same step with nothing around it. Each part writes FOLDER/PART.json, the rows of `bench` go to FOLDER/rows.jsonl. All of it takes two minutes on an H200.
"""
import json
import statistics
import subprocess
import sys

from machine import TINY, against, dry, dump_features, main_of

# Asked for, on an H200: ms, bytes of the arena, tokens/s, a share, tokens/s at which features come.
ATTENTION_MS = {("fwd", "S=4096"): 0.41, ("bwd", "S=4096"): 1.45, ("fwd", "S=16384"): 1.45, ("bwd", "S=16384"): 5.0, ("fwd", "S=4096 window 2048"): 0.749 / 2.3,
                ("bwd", "S=4096 window 2048"): 3.29 / 2.3, ("fwd", "S=16384 window 2048"): 1.18 / 2.3, ("bwd", "S=16384 window 2048"): 4.19 / 2.3}
STEPS = {"qwen3-8b": (["--shape", "qwen3-8b"], 130, 9, 28.67e9), "qwen3-8b, 16384 tokens": (["--shape", "qwen3-8b", "--tokens", 16384], 168, 9, 30.17e9),
         "qwen3.6-27b": (["--shape", "qwen3.6-27b"], 215, 15, 44.45e9)}
CAPTURE = {"qwen3-8b": 43000, "qwen3.6-27b": 12000}
BUSY, SOURCE = 0.97, 40000


def bench(m, *words):
    """The first row of it: the whole."""
    return json.loads(m.run(1, "bench", *words, "--device", m.device, "--out", m.out / "rows.jsonl").stdout.splitlines()[0])


def attention(m):
    if dry(m):
        return {}
    check = next(p for p in m.build.rglob("attention_hopper_check") if p.is_file())
    said = subprocess.run([check, "--bench"], capture_output=True, text=True, check=True, timeout=150, env=m.environment()).stdout
    rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    ms = {(r["op"].removeprefix("block_attention_"), r["shape"]): r["ms"] for r in rows if r["op"].startswith("block_attention")}
    return {"goals": {" ".join(key): against(ms[key], asked) for key, asked in ATTENTION_MS.items()}, "rows": rows}


def steps(m):
    out = {}
    for name, (words, step_ms, optimizer_ms, memory) in {"tiny": (["--shape", "tiny"], 0, 0, 0)}.items() if dry(m) else STEPS.items():
        row = bench(m, "drafter", *words)
        out[name] = {"step_ms": against(row["median_ms"], step_ms), "optimizer_ms": against(row["optimizer_ms"], optimizer_ms), "arena_bytes": against(row["arena_bytes"], memory)}
    return out


def capture(m):
    return {name: {"tokens_per_s": against(bench(m, "target", "--shape", name)["tokens_per_s"], asked, most=False)} for name, asked in ({"tiny": 0} if dry(m) else CAPTURE).items()}


def busy(m):
    """Rows of one document each, as `bench` has them; the shards are in the page cache, because they have just been written. How fast features can come is seen with a drafter
    that has next to nothing to do for them."""
    shape = "tiny" if dry(m) else "qwen3-8b"
    config = TINY if dry(m) else "configs/qwen3-8b.ini"
    words, settings = m.job(config, documents=32)
    settings.update(data__tokens="", data__features=dump_features(m, 1, config, words, settings), train__rows_per_step=4 if dry(m) else 1)
    steps = 8 if dry(m) else 48
    bare = [bench(m, "drafter", "--shape", shape)["median_ms"]]
    row = m.train(1, "from-shards", config, *words, **settings, train__steps=steps).row(skip=8)
    bare.append(bench(m, "drafter", "--shape", shape)["median_ms"])
    source = m.train(1, "source", config, *words, **settings, train__steps=steps, train__anchors=1).row(skip=8)
    return {"training": row, "step_ms": bare, "busy": against(statistics.mean(bare) / 1e3 / row["mean_step_s"], BUSY, most=False),
            "not waiting": against(1 - row["drafters_wait"], BUSY, most=False), "source": source,
            "source_tokens_per_s": against(source["tokens_per_s"], 0 if dry(m) else SOURCE, most=False)}


PARTS = {f.__name__: (f, minutes) for f, minutes in ((attention, 0.5), (steps, 1.5), (capture, 1.5), (busy, 1.5))}


if __name__ == "__main__":
    sys.exit(main_of(__doc__, PARTS))
