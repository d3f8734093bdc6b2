#!/usr/bin/env python3
"""What two GPUs of one host (`dumping_in_turn`: one) are to show, in parts that can be run one by one and again:

  tests/gpus/two_gpus.py --build DIR --out FOLDER [PART...]     all parts unless named; one that has its result in FOLDER is left out
  tests/gpus/two_gpus.py --dry ...                              the same script on CPU ranks with the tiny models: tries the script, not the machine

Each part writes FOLDER/PART.json. NCCL_NVLS_ENABLE=0 is set.
"""
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import zlib

from machine import NO_EVALUATION, ROOT, TINY, dry, dump_features, faults as disturbed, largest_difference, main_of, options_of
from reads import bytes_read

GRADIENT_BYTES = 4 * 1048626176  # of the drafter of configs/qwen3-8b-drafter.json, fp32


def sum_alone_s(m):
    """The sum of the gradients with nothing beside it, from the rate of `bench wire`'s largest sum."""
    rows = [json.loads(line) for line in m.run(2, "bench", "wire", "--device", m.device).stdout.splitlines()]
    return GRADIENT_BYTES / max(r["gb_s"] for r in rows if r["op"] == "allreduce") / 1e9


def big(m, shape, documents=32):
    """Configuration, options and settings of a run of that shape with made-up weights; dry: the tiny one."""
    config = TINY if dry(m) else f"configs/{shape}.ini"
    options, settings = m.job(config, documents)
    return config, options, {**settings, "train__rows_per_step": 4, **({"train__steps": 8} if dry(m) else {})}


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
    one, two, again = (m.train(n, name, TINY, **settings) for n, name in ((1, "tiny1"), (2, "tiny11"), (2, "tiny11b")))
    return {"bit_equal_twice": two.losses() == again.losses(), "from_one_rank": largest_difference(two.losses(), one.losses())}


def eight(m):
    """Qwen3-8B: one rank in turn, and 1+1."""
    config, options, settings = big(m, "qwen3-8b")
    alone = m.train(1, "8b1", config, *options, **{**settings, "train__steps": 8})
    pair = m.train(2, "8b11", config, *options, **{**settings, "train__steps": 8 if dry(m) else 40})
    busy = alone.plan["expected_busy"]  # the shares of one rank's time by FLOPs: a pair is as fast as its slower side
    return {"in turn": alone.row(), "1+1": pair.row(), "largest loss difference": largest_difference(alone.losses()[:8], pair.losses()[:8]),
            "1+1 over in turn, planned": 1 / max(busy.values()), "measured": pair.row()["tokens_per_s"] / alone.row()["tokens_per_s"]}


def dumping(m):
    """1+1, without and with a dump of what the target computes."""
    config, options, settings = big(m, "qwen3-8b")
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
    config, options, settings = big(m, "qwen3-8b", documents=80)
    settings["train__steps"] = 8 if dry(m) else 16  # all in epoch 0, whose rows are dumped
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
    config, options, settings = big(m, "qwen3.6-27b")
    return {"1+1": m.train(2, "27b11", config, *options, **{**settings, "train__steps": 8 if dry(m) else 14}).row()}


def offline(m):
    """Two drafters from feature shards: the gradients' sum, and what of it is not hidden under the backward pass."""
    config, options, settings = big(m, "qwen3-8b")
    settings = {**settings, "train__steps": 12}
    settings.update(data__tokens="", data__features=dump_features(m, 2, config, options, settings))
    one = m.train(1, "off1", config, *options, **{**settings, "train__rows_per_step": 2})
    # What each of two drafters does but for the sum, on both GPUs at once: as hot and as many readers of the disk.
    half = m.trains([(1, "off1a", 0), (1, "off1b", 1)], config, *options, **{**settings, "train__rows_per_step": 1})
    two, again = (m.train(2, name, config, *options, **{**settings, "train__rows_per_step": 2}) for name in ("off2", "off2b"))
    # Two that meet at the end of each step take the slower one's time.
    bare, row = statistics.median(max(a["seconds"], b["seconds"]) for a, b in list(zip(half[0].metrics, half[1].metrics))[4:]), two.row()
    alone = sum_alone_s(m)
    exposed = row["step_s"] - bare
    return {"one drafter, 2 rows": one.row(), "one drafter, 1 row": [h.row() for h in half], "two drafters, 2 rows": row,
            "bit_equal_twice": two.losses() == again.losses(), "largest loss difference": largest_difference(two.losses(), one.losses()),
            "gradient_bytes": None if dry(m) else GRADIENT_BYTES, "sum alone_s": alone, "step of two without a sum_s": bare, "step longer by_s": exposed, "hidden by steps": 1 - exposed / alone,
            "hidden by events": 1 - row["reduce_exposed_s"] / alone}


def weights(m):
    """A sharded checkpoint for two target ranks of one node: read once; `dump` gives the same bits as one rank that reads alone."""
    if dry(m):
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
        if not dry(m):
            subprocess.run("sync; echo 3 > /proc/sys/vm/drop_caches", shell=True, stderr=subprocess.DEVNULL)
        with open(m.out / "weights.log", "w") as f:
            job = subprocess.Popen(m.command(ranks, "dump", "--config", config, "--device", m.device, "--set", f"dump.dir={folder}"), cwd=ROOT, stdout=f, stderr=f,
                                   env=m.environment())
            read = bytes_read(job, m.program, str(folder))
        said = (m.out / "weights.log").read_text()
        if job.returncode != 0:
            raise RuntimeError(said[-3000:])
        result[f"{ranks} ranks"] = {"bytes_read": read, "said": re.findall(r"(\S+ GB read in .*|\d+ bytes of weights received .*)", said)}
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
    return disturbed(m, 2, ("transfer:6:1:kill", "load:0:1:kill", "save:4:0:stop", "transfer:6:0:stop"))


def reduce_faults(m):
    """The same in the sum of the gradients, where two drafters train from shards."""
    folder = m.work / "tiny-features"
    if not (folder / "manifest.json").exists():
        m.run(2, "dump", "--config", TINY, "--device", m.device, *options_of({"dump__dir": folder, "train__precision": "fp32"}))
    return disturbed(m, 2, ("reduce:6:0:kill", "reduce:6:1:kill", "reduce:6:0:stop", "reduce:6:1:stop"), data__tokens="", data__features=folder)


def refusals(m):
    """Two ranks on one GPU."""
    if dry(m):
        return {}
    done = m.run(2, "train", "--config", TINY, "--device", "cuda", "--set", f"log.dir={m.work}/refused", code=None, env={"CUDA_VISIBLE_DEVICES": "0"})
    return {"exit_code": done.returncode, "said": [line for line in done.stderr.splitlines() if "error" in line or "--share-gpu" in line][:2]}


# What each of two ranks sees, and --device; what must come of it: the exit code, and what the one line says. `train` but where `decode` is named.
HIDDEN = {"none on rank 1": (("0,1", ""), "cuda", 2, ("rank 1 on", "CUDA_VISIBLE_DEVICES")), "none on rank 1, decode": (("0,1", ""), "cuda", 2, ("rank 1 on", "CUDA_VISIBLE_DEVICES")),
          "none on rank 0": (("", "0,1"), "cuda", 2, ("CUDA_VISIBLE_DEVICES",)),
          "none on rank 1, --device auto": (("0,1", ""), "auto", 2, ("rank 1 on", "CUDA_VISIBLE_DEVICES")),
          "the same one": (("0", "0"), "cuda", 2, ("ranks 0 and 1", "--share-gpu")), "two, and one of them": (("0,1", "0"), "cuda", 2, ("ranks 0 and 1", "--share-gpu")),
          "one each": (("1", "0"), "cuda", 0, ())}


def hidden(m):
    """A GPU is hidden from a rank by CUDA_VISIBLE_DEVICES: one line that says so and what to do, nothing written."""
    rows = []
    for name, (see, device, code, parts) in HIDDEN.items():
        if dry(m):  # no rank sees a GPU
            code, parts = (2, ("no CUDA device is visible",)) if device == "cuda" else (0, ())
        log = m.work / "hidden"
        shutil.rmtree(log, ignore_errors=True)
        words = ["train", "--config", TINY, "--device", device, *options_of({**NO_EVALUATION, "log__dir": log, "train__steps": 2, "train__precision": "fp32"})]
        if name.endswith("decode"):
            words = ["decode", "--target", "data/tiny/target", "--drafter", "tests/golden/tiny-drafter", "--prompts", "data/tiny/prompts.h5", "--device", device]
        shell = f'case "$OMPI_COMM_WORLD_RANK" in 0) CUDA_VISIBLE_DEVICES={see[0]} ;; *) CUDA_VISIBLE_DEVICES={see[1]} ;; esac; export CUDA_VISIBLE_DEVICES; exec "$@"'
        start = m.command(2, *words)
        at = start.index(str(m.program))
        done = subprocess.run([*start[:at], "sh", "-c", shell, "rank", *start[at:]], cwd=ROOT, capture_output=True, text=True, timeout=90, env=m.environment())
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        row = {"hidden": name, "seen": see, "device": device, "exit_code": done.returncode, "said": errors, "wrote": log.exists()}
        if done.returncode != code or len(errors) != (code != 0) or any(p not in "".join(errors) for p in parts) or log.exists() != (code == 0):
            raise RuntimeError(f"{row}\n{done.stderr[-2000:]}")
        rows.append(row)
    return rows


def node_broadcast(m):
    """The test of weights passed on, with a GPU for each rank: NCCL."""
    name = "node_broadcast_test" if dry(m) else "node_broadcast_gpu_test"
    start = m.command(2)[:-1]
    done = subprocess.run([*start, m.build / "tests/comm" / name], cwd=ROOT, capture_output=True, text=True, timeout=90,
                          env=m.environment({"GTEST_COLOR": "no", "SLIP_REQUIRE_GPU": "0" if dry(m) else "1"}))
    passed, skipped = (re.findall(rf"\[ +{word} \] (NodeBroadcast\.\w+) \(", done.stdout) for word in ("OK", "SKIPPED"))
    if done.returncode != 0 or not passed or skipped:
        raise RuntimeError(f"exit code {done.returncode}, skipped: {skipped}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return {"passed": passed}


def decoding(m):
    """Prompts shared by two ranks: the responses of one, the weights read once."""
    folder = m.work / "decoding"
    folder.mkdir(exist_ok=True)
    prompts, drafter = shutil.copy(ROOT / "data/tiny/prompts.h5", folder), ROOT / "tests/golden/tiny-drafter"
    reports, read = [], {}
    for ranks in (1, 2):
        with open(m.out / "decoding.log", "w") as said, open(folder / "report", "w") as report:
            job = subprocess.Popen(m.command(ranks, "decode", "--target", ROOT / "data/tiny/target", "--drafter", drafter, "--prompts", prompts, "--device", m.device,
                                             "--precision", "fp32", "--json", "--documents", 20 if dry(m) else 0), cwd=ROOT, stdout=report, stderr=said, env=m.environment())
            read[f"{ranks} ranks"] = bytes_read(job, m.program, prompts)
        if job.returncode != 0:
            raise RuntimeError((m.out / "decoding.log").read_text()[-3000:])
        reports.append(json.loads((folder / "report").read_text())["responses"])
    weights = sum((f / "model.safetensors").stat().st_size for f in (ROOT / "data/tiny/target", drafter))
    two = read["2 ranks"]
    if reports[0] != reports[1] or two[1] - two[0] < 0.95 * weights:
        raise RuntimeError(f"equal: {reports[0] == reports[1]}, bytes read: {read}, of weights {weights}")
    return {"responses": len(reports[0]), "equal": True, "bytes of weights": weights, "bytes_read": read}


def losses_27b(m):
    """Qwen3.6-27B: 1+1 against one GPU that does both in turn."""
    config, options, settings = big(m, "qwen3.6-27b")
    settings["train__steps"] = 6
    alone, pair = (m.train(n, name, config, *options, **settings) for n, name in ((1, "27b1"), (2, "27b11l")))
    return {"in turn": alone.row(skip=2), "1+1": pair.row(skip=2), "losses": {"in turn": alone.losses(), "1+1": pair.losses()},
            "largest loss difference": largest_difference(alone.losses(), pair.losses())}


PARTS = {f.__name__: (f, minutes) for f, minutes in (
    (hidden, 1), (node_broadcast, 0.2), (decoding, 0.5), (reduce_faults, 1.7), (losses_27b, 1.5), (doctor, 0.2), (wire, 0.5), (tiny, 0.3), (eight, 1), (twentyseven, 0.7), (offline, 1),
    (weights, 1), (faults, 1.5), (refusals, 0.1), (dumping, 1.5), (dumping_in_turn, 3))}


if __name__ == "__main__":
    sys.exit(main_of(__doc__, PARTS))
