#!/usr/bin/env python3
"""One host with many GPUs: eight ranks, 5 targets and 3 drafters. Parts of at most 9 minutes, each with a result file; called again, it goes on:

  tests/gpus/one_node.py --build DIR --out FOLDER                                        8 GPUs, the full-size models
  tests/gpus/one_node.py --build DIR --out FOLDER --ranks 2 --set train.rows_per_step=4  the same on 2 GPUs: 1+1
  tests/gpus/one_node.py --build DIR --out FOLDER --device cpu                           8 CPU ranks on the tiny models: tries script and protocol, not the machine

Each part writes FOLDER/PART.json; FOLDER/rows.jsonl (a line for each measured run) and FOLDER/README.md (the tables) are made anew from them each time.
Exit code 75: some parts did not fit into --minutes, or --total-minutes is used up. NCCL_NVLS_ENABLE=0 is set.
"""
import json
import re
import shutil
import sys

from machine import TINY, Machine, check_faults, faults, faulty, options, run_parts
from one_node_page import write_page

PARTS = {}


def part(minutes):
    def add(f):
        PARTS[f.__name__] = (f, minutes)
        return f
    return add


def roles(split):
    return {} if split is None else {"roles__targets": split[0], "roles__drafters": split[1]}


def job(m, config):
    """Of 192 rows, which steps of 24, 16 or 8 use up; the tiny configuration has fewer rows a step than ranks."""
    words, settings = m.job(config, documents=192)
    return words, {**settings, **({"train__rows_per_step": m.ranks} if config == TINY else {})}


def measured(m, name, config, split, **more):
    """A run of m.steps steps after 8 that warm up; split: (targets, drafters), or None: as the planner says."""
    words, settings = job(m, config)
    r = m.train(m.ranks, name, config, *words, timeout=500, **settings, **roles(split), train__steps=8 + m.steps, **more)
    if len({step["rows"] for step in r.metrics}) != 1:
        raise RuntimeError("the end of an epoch has made a short step: train.rows_per_step must divide 192")
    return {"config": config, "ranks": m.ranks, "targets": r.plan["targets"], "drafters": r.plan["drafters"], "rows_per_step": r.plan["rows_per_step"], "queue_rows": r.plan["queue_rows"],
            "device": r.plan["device"]["name"], **r.row(skip=8), "peak_share": r.peak_shares(skip=8), "rank": r.ranks(), "memory_gb": r.memory()}


@part(0.5)
def doctor(m):
    findings = json.loads(m.run(m.ranks, "doctor", "--json", "--dir", m.work).stdout)["findings"]
    return {f["what"]: f"{f['health']} {f['found']}" for f in findings if f["what"] in ("ranks", "cores", "GPU", "GPU map", "MPI", "NCCL", "folder")}


@part(8.5)
def planned(m):
    """The large target, in the split that the planner chooses."""
    return measured(m, "planned", m.config, None)


@part(8.5)
def split(m):
    """The large target in 5+3, or as --split says; a run that the planner's choice has made already is not made again."""
    before = m.out / "planned.json"
    if before.exists():
        same = json.loads(before.read_text())["result"]
        if (same["targets"], same["drafters"]) == m.split:
            return {"as": "planned"}
    return measured(m, "split", m.config, m.split)


@part(4)
def second(m):
    """The smaller target, in the planner's split."""
    return measured(m, "second", m.second, None)


@part(3)
def kills(m):
    """The large target: one rank of each role is killed; seconds until no process is left, and what is said."""
    words, settings = job(m, m.config)
    targets, drafters = m.split
    rows = [faulty(m, m.ranks, m.train_words(m.config, "kills", words, {**settings, **roles(m.split), "train__steps": 20}), "kills", fault)
            for fault in dict.fromkeys((f"capture:3:{drafters + targets - 1}:kill", f"train:3:{drafters - 1}:kill", "train:3:0:kill"))]
    check_faults(rows)
    return rows


@part(3)
def resumes(m):
    """The tiny run on all ranks: each role killed in a transfer, the sum and a save, then resumed to the same weights."""
    targets, drafters = m.split
    last, rows = drafters + targets - 1, {"train__rows_per_step": 2 * max(m.split)}
    return faults(m, m.ranks, (f"transfer:6:{last}:kill", f"reduce:6:{drafters - 1}:kill", f"transfer:6:{last}:stop"), **roles(m.split), **rows)


@part(8.5)
def queue(m):
    """The large target as planned, with as many rows in a drafter's queue as the plan advises."""
    plan = json.loads(m.run(1, "plan", "--json", "--ranks", m.ranks, *m.train_words(m.config, "queue", [], {**job(m, m.config)[1], "train__steps": 1})[1:]).stdout)
    advice = re.search(r"; (\d+) keeps all", " ".join(plan["notes"]))
    return measured(m, "queue", m.config, None, roles__queue_rows=int(advice[1])) if advice else {"as": "planned"}


@part(4)
def dumping(m):
    """The smaller target: features dumped during 20 steps, then every checksum read; beside it the same steps without a dump."""
    rows = m.ranks
    words, settings = job(m, m.second)
    settings = {**settings, "train__steps": 20, "train__rows_per_step": rows}
    folder = m.work / "dumped"
    shutil.rmtree(folder, ignore_errors=True)
    bare = m.train(m.ranks, "bare", m.second, *words, **settings).row()
    dumped = m.train(m.ranks, "dumped-run", m.second, *words, **settings, dump__dir=folder, timeout=300).row()
    manifest = json.loads((folder / "manifest.json").read_text())
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    facts = json.loads(m.run(1, "inspect", "--verify", folder, "--json", timeout=200).stdout)
    shutil.rmtree(folder)
    return {"config": m.second, "steps": 20, "rows_per_step": rows, "bare": bare, "dumping": dumped, "lost": 1 - dumped["tokens_per_s"] / bare["tokens_per_s"], "bytes": size,
            "shards": len(manifest["shards"]), "verified": facts.get("verified", facts.get("documents"))}


def main():
    p = options(__doc__)
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    p.add_argument("--ranks", type=int, default=8, help="as many GPUs (8)")
    p.add_argument("--config", help="the large target (configs/qwen3.6-27b.ini; on CPU ranks configs/tiny.ini)")
    p.add_argument("--second", help="the smaller one (configs/qwen3-8b.ini; on CPU ranks configs/tiny.ini)")
    p.add_argument("--split", help="TARGETS+DRAFTERS; 5+3 of 8, 1+1 of 2")
    p.add_argument("--steps", type=int, default=100, help="that are measured, after 8 others (100)")
    p.add_argument("--total-minutes", type=float, default=25, help="over all calls")
    p.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="PART", help=", ".join(PARTS))
    o = p.parse_args()
    if o.ranks < 2:
        p.error(f"--ranks {o.ranks}: a target and a drafter are two")
    drafters = max(1, o.ranks * 3 // 8)
    try:
        at = tuple(int(n) for n in o.split.split("+")) if o.split else (o.ranks - drafters, drafters)
    except ValueError:
        at = ()
    if len(at) != 2 or min(at) < 1 or sum(at) != o.ranks:
        p.error(f"--split {o.split}: want TARGETS+DRAFTERS that are {o.ranks} ranks")
    m = Machine(o.build, o.out, o.work, o.device, o.set)
    m.ranks, m.split, m.steps = o.ranks, at, o.steps
    m.config = o.config or (TINY if o.device == "cpu" else "configs/qwen3.6-27b.ini")
    m.second = o.second or (TINY if o.device == "cpu" else "configs/qwen3-8b.ini")
    used = sum(json.loads(f.read_text())["seconds"] for name in PARTS if (f := m.out / f"{name}.json").exists()) / 60
    code = run_parts(m, PARTS, o.parts, min(o.minutes, o.total_minutes - used), lambda name, result: json.dumps(result)[:600])
    write_page(m.out, list(PARTS))
    return code


if __name__ == "__main__":
    sys.exit(main())
