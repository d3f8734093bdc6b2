"""What the scripts of this folder share: starting runs on the GPUs or CPU ranks of one host, what their files say, faults, and parts with a result file each."""
import argparse
import configparser
import hashlib
import importlib.machinery
import importlib.util
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
sys.path.insert(0, str(ROOT / "tests" / "support"))
sys.dont_write_bytecode = True
from reads import processes  # noqa: E402


def launcher():
    """launch/run as a module: what it sets for mpirun is set here too."""
    loader = importlib.machinery.SourceFileLoader("launch_run", str(ROOT / "launch" / "run"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("launch_run", loader))
    loader.exec_module(module)
    return module


ENVIRONMENT = {**launcher().ENVIRONMENT, "NCCL_NVLS_ENABLE": "0"}
TINY = "configs/tiny.ini"
NO_EVALUATION = {"eval__tokens": "", "eval__prompts": ""}


def gpu_memory_gb():
    """In use on each GPU; none where there is no nvidia-smi."""
    try:
        said = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [round(int(line) * 2**20 / 1e9, 2) for line in said.stdout.split() if line.isdecimal()] if said.returncode == 0 else []


def options_of(settings):
    """{"train__steps": 8} as --set train.steps=8."""
    return [w for k, v in settings.items() for w in ("--set", f"{k.replace('__', '.')}={v}")]


class Machine:
    """Where things are: `out` gets results and what runs said, `work` is scratch. `device`: cuda or cpu."""

    def __init__(self, build, out, work, device, sets=()):
        self.build, self.out, self.work = pathlib.Path(build).resolve(), pathlib.Path(out).resolve(), pathlib.Path(work).resolve()
        self.program, self.device, self.set = self.build / "slipstream", device, [w for pair in sets for w in ("--set", pair)]
        if not self.program.exists():
            sys.exit(f"--build {build}: there is no slipstream in it")
        for folder in (self.work, self.out):
            folder.mkdir(parents=True, exist_ok=True)

    def environment(self, more=None):
        return {**os.environ, **ENVIRONMENT, **(more or {})}

    def command(self, ranks, *words):
        start = ["mpirun", "-n", str(ranks), "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"] if ranks > 1 else []
        return [*start, str(self.program), *map(str, words)]

    def run(self, ranks, *words, timeout=150, code=0, env=None):
        done = subprocess.run(self.command(ranks, *words), cwd=ROOT, capture_output=True, text=True, timeout=timeout, env=self.environment(env))
        if code is not None and done.returncode != code:
            raise RuntimeError(f"{words[:4]}: exit code {done.returncode}, expected {code}\n{done.stderr[-3000:]}")
        return done

    def train_words(self, config, name, options, settings):
        return ["train", "--config", config, "--device", self.device, *options, *self.set, *options_of({"log__dir": self.work / name, **settings})]

    def train(self, ranks, name, config, *options, timeout=200, **settings):
        return self.trains([(ranks, name, None)], config, *options, timeout=timeout, **settings)[0]

    def trains(self, runs, config, *options, timeout=200, **settings):
        """Several runs side by side: (ranks, name, the GPU that it sees, or None: all)."""
        jobs, began = [], time.monotonic()
        for ranks, name, gpu in runs:
            shutil.rmtree(self.work / name, ignore_errors=True)
            see = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)}
            with open(self.out / f"{name}.log", "w") as f:
                jobs.append((name, self.work / name, subprocess.Popen(self.command(ranks, *self.train_words(config, name, options, settings)), cwd=ROOT, stdout=f,
                                                                      stderr=f, env=self.environment(see), start_new_session=True)))
        first, memory, looked = {}, [], began
        while any(job.poll() is None for _, _, job in jobs):
            for name, log, job in jobs:
                if name not in first and (log / "metrics.jsonl").exists() and (log / "metrics.jsonl").stat().st_size > 0:
                    first[name] = time.monotonic() - began
                if time.monotonic() - began > timeout and job.poll() is None:
                    os.killpg(job.pid, signal.SIGKILL)
            if self.device == "cuda" and len(first) == len(jobs) and time.monotonic() - looked > 5:  # it takes a while: not before the first step
                now, looked = gpu_memory_gb(), time.monotonic()
                memory = [max(pair) for pair in zip(memory, now)] if memory else now
            time.sleep(0.05)
        for name, _, job in jobs:
            if job.returncode != 0:
                raise RuntimeError(f"{name}: exit code {job.returncode}\n" + (self.out / f"{name}.log").read_text()[-3000:])
        return [Result(log, first.get(name), memory) for name, log, _ in jobs]

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
            lines.unlink()
        return path

    def job(self, config, documents=32):
        """Options and settings to run a configuration without its files: made-up weights and documents. Where its target is there, it and its data are taken."""
        settings = {"checkpoint__every_steps": 0, "data__epochs": 0, **NO_EVALUATION}
        ini = configparser.ConfigParser()
        ini.read(ROOT / config)
        if any((ROOT / ini["target"]["path"]).glob("*.safetensors")):
            return [], settings
        drafter = json.loads((ROOT / ini["drafter"]["config"]).read_text())
        tokens = ini.getint("data", "row_tokens")
        shard = self.shard(f"{pathlib.Path(config).stem}-{documents}", drafter["vocab_size"], drafter["dflash_config"]["mask_token_id"], documents, tokens)
        return ["--synthetic-weights"], {**settings, "data__tokens": shard, "data__max_length": tokens, "log__every_steps": 100}


class Result:
    """A run that has ended, by its folder."""

    def __init__(self, log, first_step_s, gpu_gb):
        self.log, self.first_step_s, self.gpu_gb = log, first_step_s, gpu_gb
        self.metrics = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
        self.plan = json.loads((log / "plan.json").read_text())

    def losses(self):
        return [m["loss"] for m in self.metrics]

    def row(self, skip=4):
        """The steps after the first `skip`."""
        steady = self.metrics[min(skip, len(self.metrics) // 2):]
        seconds = sum(m["seconds"] for m in steady)
        return {"steps": len(steady), "tokens_per_s": sum(m["tokens"] for m in steady) / seconds, "step_s": statistics.median(m["seconds"] for m in steady), "mean_step_s": seconds / len(steady),
                "drafters_wait": sum(m["wait_features_s"] for m in steady) / seconds,
                "targets_wait": statistics.mean(m["target_wait_share"] for m in steady),
                "rows_ready": statistics.mean(m["rows_ready"] for m in steady),
                "taps_early_share": statistics.mean(m["taps_early_share"] for m in steady),
                "taps_late_share": None if any(m["taps_late_s"] is None for m in steady) else sum(m["taps_late_s"] for m in steady) / seconds,
                "reduce_s": statistics.median(m["reduce_s"] for m in steady), "reduce_exposed_s": statistics.median(m["reduce_exposed_s"] for m in steady),
                "dump_wait_s": sum(m.get("dump_wait_s", 0) for m in steady),
                "first_step_s": self.first_step_s, "rank_gb": [round(r["memory_bytes"] / 1e9, 2) for r in self.plan["rank"]],
                "expected_busy": self.plan["expected_busy"]}

    def peak_shares(self, skip):
        """Of the peak that the vendor declares for the GPUs of a role, what its work by the plan's FLOPs comes to; null on a CPU."""
        steady = self.metrics[min(skip, len(self.metrics) // 2):]
        rows_per_s, peak = sum(m["rows"] for m in steady) / sum(m["seconds"] for m in steady), self.plan["device"].get("declared_bf16_flops")
        of = {"all": (self.plan["row"]["target_flops"] + self.plan["row"]["drafter_flops"], self.plan["ranks"]),
              "targets": (self.plan["row"]["target_flops"], self.plan["targets"]), "drafters": (self.plan["row"]["drafter_flops"], self.plan["drafters"])}
        return {name: None if peak is None else flops * rows_per_s / (ranks * peak) for name, (flops, ranks) in of.items()}

    def ranks(self):
        """What each rank's log says at its end, over the whole run; shares of its time."""
        out = []
        for r in self.plan["rank"]:
            said = (self.log / "log" / f"rank-{r['rank']:04}.log").read_text()
            row = {"rank": r["rank"], "role": r["role"], "memory_gb": round(r["memory_bytes"] / 1e9, 3)}
            if found := re.search(r"target rank \d+: (\d+) rows, ([\d.]+) s at work, ([\d.]+) s waiting for requests, ([\d.]+) s waiting for a free buffer", said):
                work, idle, transfer = (float(x) for x in found.groups()[1:])
                total = max(work + idle + transfer, 1e-9)
                row.update(rows=int(found[1]), seconds=total, idle_share=idle / total, transfer_exposed_share=transfer / total)
            if found := re.search(r"drafter rank \d+: (\d+) rows in ([\d.]+) s of steps, ([\d.]+) s waiting for features; sums of gradients took ([\d.]+) s, ([\d.]+) s", said):
                total, idle, sums, exposed = (float(x) for x in found.groups()[1:])
                total = max(total, 1e-9)
                row.update(rows=int(found[1]), seconds=total, idle_share=idle / total, sums_share=sums / total, sums_exposed_share=exposed / total)
            if r["rank"] < len(self.gpu_gb):
                row["gpu_gb"] = self.gpu_gb[r["rank"]]  # all that the GPU held, contexts and NCCL in it
            out.append(row)
        return out

    def memory(self, largest=8):
        """The largest allocations of a rank of each role, in GB."""
        roles = {}
        for r in self.plan["rank"]:
            if r["role"] not in roles:
                by_size = sorted(r["memory"].items(), key=lambda pair: -pair[1])
                roles[r["role"]] = {**{name: size / 1e9 for name, size in by_size[:largest]}, "the others": sum(size for _, size in by_size[largest:]) / 1e9}
        return roles


def against(found, asked, most=True):
    return {"found": found, "asked": asked, "holds": found <= asked if most else found >= asked}


def dry(m):
    return m.device == "cpu"


def dump_features(m, ranks, config, options, settings):
    """The folder of hidden states of the run's documents, dumped where it is not there yet."""
    folder = m.work / "features"
    if not (folder / "manifest.json").exists():
        sets = {"dump__dir": folder, "data__tokens": settings.get("data__tokens", "data/tiny/heldout.h5"), "data__max_length": settings.get("data__max_length", 0)}
        m.run(ranks, "dump", "--config", config, "--device", m.device, *options, *options_of(sets))
    return folder


def largest_difference(a, b):
    return max(abs(x / y - 1) for x, y in zip(a, b))


def faulty(m, ranks, words, name, fault, wait_s=120):
    """Starts the run with a fault (PHASE:STEP:RANK:ACTION), until none of its processes is left: what it took from the fault on, and what was said."""
    said, folder = m.out / f"{name}.log", m.work / name
    shutil.rmtree(folder, ignore_errors=True)
    before = gpu_memory_gb()
    with open(said, "w") as f:
        job = subprocess.Popen([sys.executable, str(ROOT / "launch/run"), "-n", str(ranks), "--build", str(m.build), *map(str, words)], cwd=ROOT, stdout=f, stderr=f,
                               env=m.environment({"SLIP_TEST_FAULT": fault}), start_new_session=True)
    end = time.monotonic() + wait_s
    while "test fault" not in said.read_text() and job.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    happened, began = "test fault" in said.read_text(), time.monotonic()
    left = lambda: list(processes(m.program, str(folder)))
    while (job.poll() is None or left()) and time.monotonic() - began < 40:
        time.sleep(0.02)
    gone = time.monotonic() - began
    remaining = left()
    if job.poll() is None:
        os.killpg(job.pid, signal.SIGKILL)
    for pid in remaining:
        os.kill(pid, signal.SIGKILL)
    after, freed = gpu_memory_gb(), time.monotonic()  # a driver needs a moment to clear up behind a killed process
    while any(a > b + 0.05 for a, b in zip(after, before)) and time.monotonic() - freed < 10:
        time.sleep(0.1)
        after = gpu_memory_gb()
    text = said.read_text()
    return {"fault": fault, "happened": happened, "gone_s": gone, "exit_code": job.poll(), "processes_left": len(remaining),
            "gpu_memory_freed_s": time.monotonic() - freed, "gpu_memory_left_gb": max((a - b for a, b in zip(after, before)), default=None),
            "said": (re.findall(r"(rank \d+ on .*? (?:is gone|makes no progress).*)", text) or ["nothing"])[0]}


def faults(m, ranks, cases, config=TINY, **settings):
    """A small run is killed or stopped; then --resume auto goes on, to the same weights as a run that nobody disturbed."""
    def sha(name):
        return hashlib.sha256((m.work / name / "checkpoints/step-00000012/drafter/model.safetensors").read_bytes()).hexdigest()

    settings = {**NO_EVALUATION, "train__steps": 12, "checkpoint__every_steps": 4, "comm__dead_after_s": 6, **settings}
    m.train(ranks, "calm", config, **settings)
    calm, rows = sha("calm"), []
    for fault in cases:
        words = m.train_words(config, "fault", [], settings)
        row = faulty(m, ranks, words, "fault", fault)
        m.run(ranks, *words, "--resume", "auto")
        rows.append({**row, "resumed_bit_equal": sha("fault") == calm})
    check_faults(rows)
    return rows


def check_faults(rows):
    """A fault that did not happen, was not named, left something or took longer than promised fails its part."""
    for r in rows:
        bad = [what for what, wrong in (("it did not happen", not r["happened"]), ("it took over 30 s", r["gone_s"] > 30), ("processes are left", r["processes_left"] > 0),
                                        (f"exit code {r['exit_code']}", r["exit_code"] != 4), ("no rank is named", f"rank {r['fault'].split(':')[2]} " not in r["said"]),
                                        ("memory of GPUs is left", (r["gpu_memory_left_gb"] or 0) > 1), ("resumed to other weights", r.get("resumed_bit_equal") is False)) if wrong]
        if bad:
            raise RuntimeError(f"{r['fault']}: {', '.join(bad)}: {r}")


def options(doc):
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", required=True, help="build folder that holds slipstream")
    p.add_argument("--out", required=True, help="folder of results; a part that has one there is left out")
    p.add_argument("--work", default="/tmp/slipstream-gpus", help="scratch: shards, features, run directories")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for every training run that does not set it itself")
    p.add_argument("--minutes", type=float, default=9, help="begin no part that may not end in so many; call again for the others")
    return p


def run_parts(m, parts, names, minutes, ready):
    """`parts`: name -> (function, minutes that it may take on GPUs). Writes OUT/NAME.json for each; `ready(name, result)` says what is printed. Exit code: 0 all are
    there, 75 call again, 1 one has failed."""
    failed, waiting, start = 0, [], time.monotonic()
    for name in names or parts:
        function, most = parts[name]
        path = m.out / f"{name}.json"
        if path.exists():
            continue
        if (time.monotonic() - start) / 60 + most > minutes:
            waiting.append(name)
            continue
        began = time.monotonic()
        try:
            result = function(m)
        except Exception as e:  # the other parts still count
            failed += 1
            print(f"{name}: {type(e).__name__}: {e}", file=sys.stderr, flush=True)
            continue
        path.write_text(json.dumps({"part": name, "seconds": round(time.monotonic() - began, 1), "result": result}, indent=1) + "\n")
        print(f"== {name}, {time.monotonic() - began:.0f} s\n{ready(name, result)}", flush=True)
    if waiting:
        print(f"not begun, call again: {', '.join(waiting)}", file=sys.stderr)
    return 1 if failed else 75 if waiting else 0


def main_of(doc, parts):
    """A script of parts that runs on GPUs, or with --dry on the CPU."""
    p = options(doc)
    p.add_argument("--dry", action="store_true", help="on the CPU, with the tiny models: tries the script, not the machine")
    p.add_argument("parts", nargs="*", choices=[[], *parts], metavar="PART", help=", ".join(parts))
    o = p.parse_args()
    m = Machine(o.build, o.out, o.work, "cpu" if o.dry else "cuda", o.set)
    return run_parts(m, parts, o.parts, o.minutes, lambda name, result: json.dumps(result)[:1500])
