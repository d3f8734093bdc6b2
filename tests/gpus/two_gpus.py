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
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "NCCL_NVLS_ENABLE": "0", "OMP_NUM_THREADS": "1",
               "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}


GRADIENT_BYTES = 4 * 1048626176  # of the drafter of configs/qwen3-8b-drafter.json, fp32


class Machine:
    def __init__(self, o):
        self.dry, self.out, self.program = o.dry, pathlib.Path(o.out).resolve(), str(pathlib.Path(o.build).resolve() / "slipstream")
        self.work, self.set = pathlib.Path(o.work), [w for pair in o.set for w in ("--set", pair)]
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

    def train(self, ranks, name, config, *options, **settings):
        """Runs and returns what metrics.jsonl says, and the seconds until its first line."""
        return self.trains([(ranks, name, None)], config, *options, **settings)[0]

    def trains(self, runs, config, *options, **settings):
        """Several runs side by side: (ranks, name, the GPU that it sees, or None: all)."""
        jobs, began = [], time.monotonic()
        for ranks, name, gpu in runs:
            log = self.work / name
            shutil.rmtree(log, ignore_errors=True)
            sets = [w for k, v in {"log.dir": log, **{k.replace("__", "."): v for k, v in settings.items()}}.items() for w in ("--set", f"{k}={v}")]
            sets = [*self.set, *sets]
            see = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)}
            with open(self.out / f"{name}.log", "w") as f:
                jobs.append((name, log, subprocess.Popen(self.command(ranks, "train", "--config", config, "--device", self.device, *options, *sets), cwd=ROOT,
                                                         stdout=f, stderr=f, env={**os.environ, **ENVIRONMENT, **see})))
        first = {}
        while any(job.poll() is None for _, _, job in jobs):
            for name, log, job in jobs:
                if name not in first and (log / "metrics.jsonl").exists() and (log / "metrics.jsonl").stat().st_size > 0:
                    first[name] = time.monotonic() - began
                if time.monotonic() - began > 200:
                    job.kill()
            time.sleep(0.05)
        for name, _, job in jobs:
            if job.returncode != 0:
                raise RuntimeError(f"{name}: exit code {job.returncode}\n" + (self.out / f"{name}.log").read_text()[-3000:])
        return [Result([json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()], first.get(name), json.loads((log / "plan.json").read_text()))
                for name, log, _ in jobs]

    def sum_alone_s(self):
        """The sum of the gradients with nothing beside it, from the rate of `bench wire`'s largest sum."""
        rows = [json.loads(line) for line in self.run(2, "bench", "wire", "--device", self.device).stdout.splitlines()]
        return GRADIENT_BYTES / max(r["gb_s"] for r in rows if r["op"] == "allreduce") / 1e9

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
                "rows_ready": statistics.mean(m["rows_ready"] for m in steady),
                "taps_early_share": statistics.mean(m["taps_early_share"] for m in steady),
                "taps_late_share": None if any(m["taps_late_s"] is None for m in steady) else sum(m["taps_late_s"] for m in steady) / seconds,
                "reduce_s": statistics.median(m["reduce_s"] for m in steady), "reduce_exposed_s": statistics.median(m["reduce_exposed_s"] for m in steady),
                "dump_wait_s": sum(m.get("dump_wait_s", 0) for m in steady),
                "first_step_s": self.first_step_s, "rank_gb": [round(r["memory_bytes"] / 1e9, 2) for r in self.plan["rank"]],
                "expected_busy": self.plan["expected_busy"]}


def largest_difference(a, b):
    return max(abs(x / y - 1) for x, y in zip(a, b))


def doctor(m):
    findings = json.loads(m.run(2, "doctor", "--json", "--dir", m.work).stdout)["findings"]
    return {f["what"]: f"{f['health']} {f['found']}" for f in findings if f["what"] in ("ranks", "GPU", "GPU map", "MPI", "NCCL", "folder")}


def wire(m):
    rows = [json.loads(line) for blocks in (0, 1, 2, 4, 8, 16, 24)
            for line in m.run(2, "bench", "wire", "--device", m.device, "--blocks", blocks).stdout.splitlines()]
    return [{k: r[k] for k in ("op", "transport", "blocks", "bytes", "median_ms", "gb_s", "bus_gb_s")} for r in rows if r["blocks"] == 0 or r["bytes"] >= 1 << 24]


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
    busy = alone.plan["expected_busy"]  # the shares of one rank's time by FLOPs: a pair is as fast as its slower side
    return {"in turn": alone.row(), "1+1": pair.row(), "largest loss difference": largest_difference(alone.losses()[:8], pair.losses()[:8]),
            "1+1 over in turn, planned": 1 / max(busy.values()), "measured": pair.row()["tokens_per_s"] / alone.row()["tokens_per_s"]}


def dumping(m):
    """1+1, without and with a dump of what the target computes."""
    config, options, settings = m.big("qwen3-8b")
    settings["train__steps"] = 8
    folder = m.work / "dumped"
    shutil.rmtree(folder, ignore_errors=True)
    bare = m.train(2, "8b11bare", config, *options, **settings).row(skip=2)
    dumped = m.train(2, "8b11dump", config, *options, **{**settings, "dump__dir": folder}).row(skip=2)
    verified = m.run(1, "inspect", "--verify", folder)
    total = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    shutil.rmtree(folder)
    return {"1+1": {"bare": bare, "dumping": dumped, "lost": 1 - dumped["tokens_per_s"] / bare["tokens_per_s"], "bytes": total, "verified": verified.returncode == 0}}


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
    # What each of two drafters does but for the sum, on both GPUs at once: as hot and as many readers of the disk.
    half = m.trains([(1, "off1a", 0), (1, "off1b", 1)], config, *options, **{**settings, "train__rows_per_step": 1})
    two, again = (m.train(2, name, config, *options, **{**settings, "train__rows_per_step": 2}) for name in ("off2", "off2b"))
    # Two that meet at the end of each step take the slower one's time.
    bare, row = statistics.median(max(a["seconds"], b["seconds"]) for a, b in list(zip(half[0].metrics, half[1].metrics))[4:]), two.row()
    alone = m.sum_alone_s()
    exposed = row["step_s"] - bare
    return {"one drafter, 2 rows": one.row(), "one drafter, 1 row": [h.row() for h in half], "two drafters, 2 rows": row,
            "bit_equal_twice": two.losses() == again.losses(), "largest loss difference": largest_difference(two.losses(), one.losses()),
            "gradient_bytes": None if m.dry else GRADIENT_BYTES, "sum alone_s": alone, "step of two without a sum_s": bare, "step longer by_s": exposed, "hidden by steps": 1 - exposed / alone,
            "hidden by events": 1 - row["reduce_exposed_s"] / alone}


def weights(m):
    """A sharded checkpoint for two target ranks of one node: read once; `dump` gives the same bits as one rank that reads alone."""
    if m.dry:
        model, drafter = ROOT / "data/tiny/target", ROOT / "configs/tiny-drafter.json"
        tokens = ROOT / "data/tiny/heldout.h5"
    else:
        model, drafter = checkpoint(m, layers=18), m.work / "drafter-18.json"
        tokens = m.shard("weights", 151936, 151669, 4, 4096)
    config = m.work / "weights.ini"
    config.write_text(f"[target]\npath = {model}\n[drafter]\nconfig = {drafter}\n[data]\ntokens = {tokens}\nrow_tokens = 4096\n")
    result = {"checkpoint_bytes": sum(f.stat().st_size for f in model.glob("*.safetensors"))}
    for ranks in (1, 2):
        folder = m.work / f"weights{ranks}"
        shutil.rmtree(folder, ignore_errors=True)
        if not m.dry:
            subprocess.run("sync; echo 3 > /proc/sys/vm/drop_caches", shell=True, stderr=subprocess.DEVNULL)
        job = subprocess.Popen(m.command(ranks, "dump", "--config", config, "--device", m.device, "--set", f"dump.dir={folder}"), cwd=ROOT,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **ENVIRONMENT})
        read = {}
        while job.poll() is None:
            for pid in os.listdir("/proc"):  # what each rank has asked of its files so far
                try:
                    if os.readlink(f"/proc/{pid}/exe") == m.program:
                        read[pid] = int(re.search(r"rchar: (\d+)", pathlib.Path(f"/proc/{pid}/io").read_text())[1])
                except (OSError, TypeError):
                    pass
            time.sleep(0.02)
        said = job.stdout.read()
        if job.returncode != 0:
            raise RuntimeError(said[-3000:])
        result[f"{ranks} ranks"] = {"bytes_read": sorted(read.values()), "said": re.findall(r"(\S+ GB read in .*|\d+ bytes of weights received .*)", said)}
    difference = json.loads(m.run(1, "inspect", m.work / "weights1", "--diff", m.work / "weights2", "--json", "--documents", "-1").stdout)
    result["tokens_compared"] = difference["tokens_compared"]
    result["values that are equal"] = [t["equal_share"] for t in difference["taps"]]
    return result


def checkpoint(m, layers):
    """A folder with the first layers of Qwen3-8B, made-up numbers in files of about 2 GB, and a drafter that taps no layer after them."""
    import numpy

    folder = m.work / "checkpoint"
    source = json.loads((ROOT / "configs/models/qwen3-8b/config.json").read_text())
    drafter = json.loads((ROOT / "configs/qwen3-8b-drafter.json").read_text())
    drafter["dflash_config"]["target_layer_ids"] = [1, 5, 9, 13, layers - 1]
    (m.work / "drafter-18.json").write_text(json.dumps(drafter))
    if (folder / "model.safetensors.index.json").exists():
        return folder
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(source))
    h, inner, kv, q = source["hidden_size"], source["intermediate_size"], 8 * 128, 32 * 128
    tensors = [("model.embed_tokens.weight", [source["vocab_size"], h])]
    for layer in range(layers):
        shapes = {"input_layernorm": [h], "post_attention_layernorm": [h], "self_attn.q_proj": [q, h], "self_attn.k_proj": [kv, h], "self_attn.v_proj": [kv, h],
                  "self_attn.o_proj": [h, q], "self_attn.q_norm": [128], "self_attn.k_norm": [128], "mlp.gate_proj": [inner, h], "mlp.up_proj": [inner, h],
                  "mlp.down_proj": [h, inner]}
        tensors += [(f"model.layers.{layer}.{name}.weight", shape) for name, shape in shapes.items()]
    noise = (numpy.random.default_rng(1).standard_normal(1 << 24, dtype=numpy.float32) * numpy.float32(0.02)).view(numpy.uint32) >> 16
    noise = noise.astype(numpy.uint16)
    index, shard, size, number = {}, [], 0, 0
    for i, (name, shape) in enumerate(tensors):
        shard.append((name, shape))
        size += 2 * int(numpy.prod(shape))
        if size < 2 << 30 and i + 1 < len(tensors):
            continue
        file, header, at = f"model-{number:05}.safetensors", {}, 0
        for n, sh in shard:
            header[n] = {"dtype": "BF16", "shape": sh, "data_offsets": [at, at + 2 * int(numpy.prod(sh))]}
            at, index[n] = header[n]["data_offsets"][1], file
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(folder / file, "wb") as f:
            f.write(len(text).to_bytes(8, "little") + text)
            for n, sh in shard:
                left = int(numpy.prod(sh))
                if len(sh) == 1:
                    f.write(numpy.full(left, 0x3F80, numpy.uint16).tobytes())
                    continue
                start = zlib.crc32(n.encode()) % 4096
                while left > 0:
                    part = noise[start:start + left]
                    f.write(part.data)
                    left -= len(part)
                    start = 0
        shard, size, number = [], 0, number + 1
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


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


PARTS = {f.__name__: f for f in (doctor, wire, tiny, eight, offline, weights, faults, refusals, dumping, dumping_in_turn, twentyseven)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--work", default="/tmp/two-gpus", help="scratch: shards, features, run directories")
    p.add_argument("--dry", action="store_true")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for every training run that does not set it itself")
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


if __name__ == "__main__":
    sys.exit(main())
