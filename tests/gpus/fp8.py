#!/usr/bin/env python3
"""What train.precision=fp8 is to show on one Hopper GPU, in parts that can be run one by one and again:

  tests/gpus/fp8.py --build DIR --out FOLDER [PART...]     all parts unless named; one that has its result in FOLDER is left out
  tests/gpus/fp8.py --dry ...                              the same script on the CPU with the tiny models: tries the script, not the machine

ops: the operations against their references. step: one optimizer step in bf16 and in fp8, in turn, and where its time goes.
tiny: the embedded default, 500 steps in each precision with eight seeds: any other rounding leads a run elsewhere, and its end by a percent or two. wide: 500 steps of the
Qwen3-8B drafter for a frozen random target of that shape with six layers, on documents drawn from a fixed bigram table of few tokens.
Curves are compared by the mean loss of 50 steps; the goal is 1 % for the last 50, and a step 1.35 times as fast. Each part writes FOLDER/PART.json, the rows of `bench` go to
FOLDER/rows.jsonl. All of it takes three and a half minutes on an H200.
"""
import concurrent.futures
import json
import random
import statistics
import subprocess
import sys

from machine import NO_EVALUATION, ROOT, TINY, against, dry, main_of

WAYS = ("bf16", "fp8")
TESTS = {"kernels_gpu_test": "Fp8*:Matmul*:HeadRope*:HeadLoss*:Swiglu*", "drafter_gpu_test": "*"}
STEPS, WINDOW = 500, 50
WORDS, WIDE_LR = 64, 6e-4  # of `wide`: so few tokens that 500 steps learn which occur, and what follows what
SPEED, OVER = 1.35, 1  # asked: times as fast, % of loss at most


def steps(m):
    return 20 if dry(m) else STEPS


def ops(m):
    found = {}
    for name, tests in TESTS.items():
        name = name.replace("_gpu", "") if dry(m) else name
        path = next(p for p in m.build.rglob(name) if p.is_file())
        done = subprocess.run([path, f"--gtest_filter={tests}"], capture_output=True, text=True, timeout=150, env=m.environment({"SLIP_REQUIRE_GPU": "1"}))
        (m.out / f"{name}.log").write_text(done.stdout + done.stderr)
        lines = done.stdout.splitlines()
        found[name] = {"exit_code": done.returncode, "passed": next((line for line in lines if "PASSED" in line), ""),
                       "failed": [line for line in lines if line.startswith("[  FAILED  ]")][:20]}
        if done.returncode != 0 or "PASSED" not in found[name]["passed"] or " 0 tests" in found[name]["passed"]:
            raise RuntimeError(f"{name}: {found[name]}")
    return found


def bench(m, shape, way, *words):
    said = m.run(1, "bench", "drafter", "--shape", shape, "--device", m.device, "--repeat", 10, "--out", m.out / "rows.jsonl", "--precision", "auto" if way == "bf16" else way, *words)
    return [json.loads(line) for line in said.stdout.splitlines()]


def step(m):
    out = {}
    for shape in ["tiny"] if dry(m) else ["qwen3-8b", "qwen3.6-27b"]:
        rows = {way: [] for way in WAYS}
        for way in WAYS * 2:  # twice: the card is warm then
            row = bench(m, shape, way)[0]
            rows[way].append({k: row[k] for k in ("median_ms", "min_ms", "products_ms", "optimizer_ms", "arena_bytes", "peak_tflops")})
        out[shape] = {**rows, "times_bf16": against(statistics.mean(r["median_ms"] for r in rows["bf16"]) / statistics.mean(r["median_ms"] for r in rows["fp8"]), 0 if dry(m) else SPEED, most=False)}
    parts = {}
    for row in bench(m, "tiny" if dry(m) else "qwen3-8b", "fp8", "--profile")[1:]:
        parts[row["op"]] = parts.get(row["op"], 0) + row["total_ms"]
    return {**out, "profile_ms": parts}


def compared(runs):
    """Of two runs: by how much the second's loss is above the first's, in percent, and what held-out documents say."""
    curves = {way: run.losses() for way, run in runs.items()}
    end = len(curves["bf16"])

    def over(e):
        bf16, fp8 = (statistics.mean(curves[way][max(0, e - WINDOW):e]) for way in WAYS)
        return 100 * (fp8 / bf16 - 1)

    def evaluation(run):
        path = run.log / "eval.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return json.loads(lines[-1]) if lines else None

    return {"over_bf16_percent": over(end), "worst_window_percent": max(over(e) for e in range(min(end, 2 * WINDOW), end + 1)),
            **{way: {"last_mean_loss": statistics.mean(curves[way][-WINDOW:]), "step_s": run.row()["step_s"], "evaluation": evaluation(run)} for way, run in runs.items()}}


def tiny(m):
    settings = NO_EVALUATION if dry(m) else {"eval__every_steps": 0, "eval__prompts": ""}
    seeds = (1,) if dry(m) else range(1, 9)
    with concurrent.futures.ThreadPoolExecutor(2 if dry(m) else 6) as pool:  # side by side: they leave a GPU mostly idle
        runs = {(seed, way): pool.submit(m.train, 1, f"tiny-{way}-{seed}", TINY, **settings, train__steps=steps(m), data__seed=seed, train__precision=way)
                for seed in seeds for way in WAYS}
    by_seed = {seed: compared({way: runs[seed, way].result() for way in WAYS}) for seed in seeds}
    held = [100 * (s["fp8"]["evaluation"]["loss"] / s["bf16"]["evaluation"]["loss"] - 1) for s in by_seed.values() if s["fp8"]["evaluation"]]
    over = [s["over_bf16_percent"] for s in by_seed.values()]
    return {"over_bf16_percent": over, "mean": against(statistics.mean(over), OVER), "held_out_percent": held, **by_seed}


def bigram(path, vocab, mask, documents, length):
    """Every token has eight followers, drawn 1/2, 1/4, ...; the table and the documents depend on the seed alone."""
    numbers = random.Random(5)
    words = min(vocab, mask, WORDS)
    followers = [[numbers.randrange(words) for _ in range(8)] for _ in range(words)]
    weights = [2.0**-k for k in range(8)]
    lines = path.with_suffix(".jsonl")
    with open(lines, "w") as f:
        for _ in range(documents):
            token, ids = numbers.randrange(words), []
            for which in numbers.choices(range(8), weights, k=length):
                ids.append(token)
                token = followers[token][which]
            f.write(json.dumps({"input_ids": ids, "loss_mask": [1] * length}) + "\n")
    subprocess.run([sys.executable, ROOT / "data/prepare", "--input", lines, "--out", path, "--vocab-size", str(vocab), "--mask-token", str(mask)],
                   check=True, capture_output=True)


def wide(m):
    """Six layers, so that five can be tapped; rows of 2048 tokens with 256 blocks, which takes half the time of the usual ones."""
    target, drafter = json.loads((ROOT / "configs/models/qwen3-8b/config.json").read_text()), json.loads((ROOT / "configs/qwen3-8b-drafter.json").read_text())
    target["num_hidden_layers"] = target["max_window_layers"] = drafter["num_target_layers"] = 6
    drafter["dflash_config"]["target_layer_ids"] = [0, 1, 2, 3, 4]
    if dry(m):
        for c in (target, drafter):
            c.update(hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=512)
        drafter["dflash_config"]["mask_token_id"] = 500
    folder = m.work / "target"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(target))
    (m.work / "drafter.json").write_text(json.dumps(drafter))
    length = 64 if dry(m) else 512
    shard = m.work / "bigram.h5"
    bigram(shard, drafter["vocab_size"], drafter["dflash_config"]["mask_token_id"], 4 * steps(m), length)
    settings = {"target__path": folder, "drafter__config": m.work / "drafter.json", "data__tokens": shard, "data__row_tokens": 4 * length, "data__max_length": length,
                "train__rows_per_step": 1, "train__anchors": length // 8, "train__schedule": "constant", "train__lr": WIDE_LR, "train__steps": steps(m), "checkpoint__every_steps": 0,
                "log__every_steps": 100, **NO_EVALUATION}
    found = compared({way: m.train(1, f"wide-{way}", "configs/qwen3-8b.ini", "--synthetic-weights", **settings, train__precision=way) for way in WAYS})
    return {**found, "over_bf16_percent": against(found["over_bf16_percent"], OVER)}


PARTS = {f.__name__: (f, minutes) for f, minutes in ((ops, 0.5), (step, 1.5), (tiny, 2), (wide, 2))}


if __name__ == "__main__":
    sys.exit(main_of(__doc__, PARTS))
