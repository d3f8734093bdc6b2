"""What two GPUs of one host (`dumping_in_turn`: one) are to show, in parts that can be run one by one and again:

  tests/gpus/two_gpus.py --build DIR --out FOLDER [PART...]     all parts unless named; one that has its result in FOLDER is left out
  tests/gpus/two_gpus.py --dry ...                              the same script on CPU ranks with the tiny models: tries the script, not the machine

Each part writes FOLDER/PART.json; `table` prints what is there. A part takes a minute or two; NCCL_NVLS_ENABLE=0 is set.
"""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "NCCL_NVLS_ENABLE": "0", "OMP_NUM_THREADS": "1",
               "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}


class Machine:
    def __init__(self, o):
        self.dry, self.out, self.program = o.dry, pathlib.Path(o.out).resolve(), str(pathlib.Path(o.build).resolve() / "slipstream")
        self.work = pathlib.Path(o.work)
        self.device = "cpu" if o.dry else "cuda"
        self.work.mkdir(parents=True, exist_ok=True)
        self.out.mkdir(parents=True, exist_ok=True)

    def command(self, ranks, *words):
        start = ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none", "--quiet"] if ranks > 1 else []
        return [*start, self.program, *map(str, words)]

    def run(self, ranks, *words, timeout=150, code=0, env=None):
        done = subprocess.run(self.command(ranks, *words), cwd=ROOT, capture_output=True, text=True, timeout=timeout, env={**os.environ, **ENVIRONMENT, **(env or {})})
        if code is not None and done.returncode != code:
            raise RuntimeError(f"{words[:4]}: exit code {done.returncode}, expected {code}\n{done.stderr[-3000:]}")
        return done

    def shard(self, name, vocab, mask, documents, length):
        path = self.work / f"{name}.h5"
        if not path.exists():
            numbers = random.Random(1)
            lines = self.work / f"{name}.jsonl"
            with open(lines, "w") as f:
                for _ in range(documents):
                    ids = [numbers.randrange(min(vocab - 1, mask)) for _ in range(length)]
                    f.write(json.dumps({"input_ids": ids, "loss_mask": [0] * (length // 8) + [1] * (length - length // 8)}) + "\n")
            subprocess.run([sys.executable, ROOT / "data/prepare", "--input", lines, "--out", path, "--vocab-size", str(vocab), "--mask-token", str(mask)],
                           check=True, capture_output=True)
        return path

    def train(self, ranks, name, config, *options, first_step=False, **settings):
        """Runs and returns what metrics.jsonl says; with `first_step` also the seconds until its first line."""
        log = self.work / name
        shutil.rmtree(log, ignore_errors=True)
        sets = [w for k, v in {"log.dir": log, **{k.replace("__", "."): v for k, v in settings.items()}}.items() for w in ("--set", f"{k}={v}")]
        began, first = time.monotonic(), None
        with open(self.out / f"{name}.log", "w") as f:
            job = subprocess.Popen(self.command(ranks, "train", "--config", config, "--device", self.device, *options, *sets), cwd=ROOT, stdout=f, stderr=f,
                                   env={**os.environ, **ENVIRONMENT})
            while job.poll() is None:
                if first is None and (log / "metrics.jsonl").exists() and (log / "metrics.jsonl").stat().st_size > 0:
                    first = time.monotonic() - began
                if time.monotonic() - began > 200:
                    job.kill()
                time.sleep(0.05)
        if job.returncode != 0:
            raise RuntimeError(f"{name}: exit code {job.returncode}\n" + (self.out / f"{name}.log").read_text()[-3000:])
        return Result([json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()], first, json.loads((log / "plan.json").read_text()))

    def big(self, shape, documents=32):
        """Options of a run of that shape with made-up weights; dry: the tiny one."""
        if self.dry:
            return "configs/tiny.ini", [], {"train__steps": 8, "eval__tokens": "", "eval__prompts": ""}
        drafter = json.loads((ROOT / f"configs/{shape}-drafter.json").read_text())
        shard = self.shard(f"{shape}-{documents}", drafter["vocab_size"], drafter["dflash_config"]["mask_token_id"], documents, 4096)
        return f"configs/{shape}.ini", ["--synthetic-weights"], {"data__tokens": shard, "data__max_length": 4096, "data__epochs": 0, "train__rows_per_step": 4,
                                                                 "checkpoint__every_steps": 0, "log__every_steps": 100}


class Result:
    def __init__(self, metrics, first_step_s, plan):
        self.metrics, self.first_step_s, self.plan = metrics, first_step_s, plan

    def losses(self):
        return [m["loss"] for m in self.metrics]

    def row(self, skip=4):
        steady = self.metrics[min(skip, len(self.metrics) // 2):]
        seconds = sum(m["seconds"] for m in steady)
        return {"steps": len(steady), "tokens_per_s": sum(m["tokens"] for m in steady) / seconds, "step_s": statistics.median(m["seconds"] for m in steady),
                "drafters_wait": sum(m["wait_features_s"] for m in steady) / seconds,
                "targets_wait": statistics.mean(m["target_wait_share"] for m in steady),
                "dump_wait_s": sum(m.get("dump_wait_s", 0) for m in steady),
                "first_step_s": self.first_step_s, "rank_gb": [round(r["memory_bytes"] / 1e9, 2) for r in self.plan["rank"]],
                "expected_busy": self.plan["expected_busy"]}


def largest_difference(a, b):
    return max(abs(x / y - 1) for x, y in zip(a, b))


def doctor(m):
    findings = json.loads(m.run(2, "doctor", "--json", "--dir", m.work).stdout)["findings"]
    return {f["what"]: f"{f['health']} {f['found']}" for f in findings if f["what"] in ("ranks", "GPU", "GPU map", "MPI", "NCCL", "folder")}


def wire(m):
    rows = [json.loads(line) for line in m.run(2, "bench", "wire", "--device", m.device).stdout.splitlines()]
    return [{k: r[k] for k in ("op", "transport", "bytes", "median_ms", "gb_s", "bus_gb_s")} for r in rows]


def tiny(m):
    """The README's main job: one rank, 1+1, and 1+1 again."""
    settings = {"train__steps": 60, "train__precision": "fp32", "eval__tokens": "", "eval__prompts": ""}
    one, two, again = (m.train(n, name, "configs/tiny.ini", **settings) for n, name in ((1, "tiny1"), (2, "tiny11"), (2, "tiny11b")))
    return {"bit_equal_twice": two.losses() == again.losses(), "from_one_rank": largest_difference(two.losses(), one.losses())}


def eight(m):
    """Qwen3-8B: one rank in turn, and 1+1."""
    config, options, settings = m.big("qwen3-8b")
    alone = m.train(1, "8b1", config, *options, **{**settings, "train__steps": 8})
    pair = m.train(2, "8b11", config, *options, **{**settings, "train__steps": 8 if m.dry else 40})
    return {"in turn": alone.row(), "1+1": pair.row(), "largest loss difference": largest_difference(alone.losses()[:8], pair.losses()[:8])}


def dumping(m):
    """The same 1+1 run while it dumps what the target computes."""
    config, options, settings = m.big("qwen3-8b")
    folder = m.work / "dumped"
    shutil.rmtree(folder, ignore_errors=True)
    pair = m.train(2, "8b11dump", config, *options, **{**settings, "train__steps": 8, "dump__dir": folder})
    verified = m.run(1, "inspect", "--verify", folder)
    total = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    shutil.rmtree(folder)
    return {"1+1 dumping": pair.row(skip=2), "bytes": total, "verified": verified.returncode == 0}


def dumping_in_turn(m):
    """What dumping costs one rank on one GPU, where the disk keeps up and in memory; each run between two without."""
    config, options, settings = m.big("qwen3-8b", documents=80)
    settings["train__steps"] = 8 if m.dry else 16  # all in epoch 0, whose rows are dumped
    rows, plain = {}, [m.train(1, "plain0", config, *options, **settings).row(skip=4)]
    for name, place in (("disk", m.work), ("memory", pathlib.Path("/dev/shm"))):
        if shutil.disk_usage(place).free < 13e9:
            continue
        folder = place / "dumped-in-turn"
        shutil.rmtree(folder, ignore_errors=True)
        rows[name] = {**m.train(1, f"dump-{name}", config, *options, **settings, dump__dir=folder).row(skip=4),
                      "bytes": sum(f.stat().st_size for f in folder.rglob("*"))}
        shutil.rmtree(folder)
        plain.append(m.train(1, f"plain{len(plain)}", config, *options, **settings).row(skip=4))
        rows[name]["cost"] = 1 - rows[name]["tokens_per_s"] * 2 / (plain[-2]["tokens_per_s"] + plain[-1]["tokens_per_s"])
    return {"plain": plain, **rows}


def twentyseven(m):
    config, options, settings = m.big("qwen3.6-27b")
    return {"1+1": m.train(2, "27b11", config, *options, **{**settings, "train__steps": 8 if m.dry else 14}).row()}


def offline(m):
    """Two drafters from feature shards: the gradients' sum, and what of it is not hidden under the backward pass."""
    config, options, settings = m.big("qwen3-8b")
    settings = {**settings, "train__steps": 12}
    folder = m.work / "features"
    if not (folder / "manifest.json").exists():
        sets = {"dump.dir": folder, "data.tokens": settings.get("data__tokens", "data/tiny/heldout.h5"), "data.max_length": settings.get("data__max_length", 0)}
        m.run(2, "dump", "--config", config, "--device", m.device, *options, *[w for k, v in sets.items() for w in ("--set", f"{k}={v}")])
    settings.update(data__tokens="", data__features=folder)
    one = m.train(1, "off1", config, *options, **{**settings, "train__rows_per_step": 2})
    half = m.train(1, "off1half", config, *options, **{**settings, "train__rows_per_step": 1})
    two, again = (m.train(2, name, config, *options, **{**settings, "train__rows_per_step": 2}) for name in ("off2", "off2b"))
    step, bare = two.row()["step_s"], half.row()["step_s"]  # a drafter of two has one row and the sum; alone one row and none
    return {"one drafter, 2 rows": one.row(), "one drafter, 1 row": half.row(), "two drafters, 2 rows": two.row(), "bit_equal_twice": two.losses() == again.losses(),
            "largest loss difference": largest_difference(two.losses(), one.losses()), "exposed_s": step - bare, "gradient_bytes": None if m.dry else 4 * 1048626176}


def faults(m):
    """A rank is killed or stopped; then --resume auto goes on, to the same weights as a run that nobody disturbed."""
    def sha(log):
        return subprocess.run(["sha256sum", log / "checkpoints/step-00000012/drafter/model.safetensors"], capture_output=True, text=True, check=True).stdout[:16]

    settings = {"train__steps": 12, "eval__tokens": "", "eval__prompts": "", "checkpoint__every_steps": 4, "comm__dead_after_s": 6}
    m.train(2, "calm", "configs/tiny.ini", **settings)
    calm, rows = sha(m.work / "calm"), []
    for fault in ("transfer:6:1:kill", "load:0:1:kill", "save:4:0:stop", "transfer:6:0:stop"):
        log = m.work / "fault"
        shutil.rmtree(log, ignore_errors=True)
        words = ["train", "--config", "configs/tiny.ini", "--device", m.device, *[w for k, v in {"log.dir": log, **{k.replace("__", "."): v for k, v in settings.items()}}.items()
                                                                                 for w in ("--set", f"{k}={v}")]]
        with open(m.out / "fault.log", "w") as f:
            job = subprocess.Popen(m.command(2, *words), cwd=ROOT, stdout=f, stderr=f, env={**os.environ, **ENVIRONMENT, "SLIP_TEST_FAULT": fault}, start_new_session=True)
            while "test fault" not in (m.out / "fault.log").read_text() and job.poll() is None:
                time.sleep(0.02)
            began = time.monotonic()
            try:
                job.wait(timeout=40)
            except subprocess.TimeoutExpired:
                os.killpg(job.pid, signal.SIGKILL)
        gone = time.monotonic() - began
        said = (m.out / "fault.log").read_text()
        m.run(2, *words, "--resume", "auto")
        rows.append({"fault": fault, "gone_s": gone, "said": (re.findall(r"slipstream.*?(rank .*is gone.*|.*makes no progress.*)", said) or ["nothing"])[0],
                     "resumed_bit_equal": sha(log) == calm})
    return rows


def refusals(m):
    """Two ranks on one GPU."""
    if m.dry:
        return {}
    done = m.run(2, "train", "--config", "configs/tiny.ini", "--device", "cuda", "--set", f"log.dir={m.work}/refused", code=None, env={"CUDA_VISIBLE_DEVICES": "0"})
    return {"exit_code": done.returncode, "said": [line for line in done.stderr.splitlines() if "error" in line or "--share-gpu" in line][:2]}


PARTS = {f.__name__: f for f in (doctor, wire, tiny, eight, offline, faults, refusals, dumping, dumping_in_turn, twentyseven)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--work", default="/tmp/two-gpus", help="scratch: shards, features, run directories")
    p.add_argument("--dry", action="store_true")
    p.add_argument("parts", nargs="*", choices=[[], *PARTS], metavar="PART", help=", ".join(PARTS))
    o = p.parse_args()
    m, failed = Machine(o), 0
    for name in o.parts or PARTS:
        path = m.out / f"{name}.json"
        if path.exists():
            continue
        began = time.monotonic()
        try:
            result = PARTS[name](m)
        except Exception as e:  # the other parts still count
            failed += 1
            print(f"{name}: {type(e).__name__}: {e}", file=sys.stderr, flush=True)
            continue
        path.write_text(json.dumps({"part": name, "seconds": round(time.monotonic() - began, 1), "result": result}, indent=1) + "\n")
        print(f"== {name}, {time.monotonic() - began:.0f} s\n{json.dumps(result)[:1500]}", flush=True)
    return 1 if failed else 0


sys.exit(main())
