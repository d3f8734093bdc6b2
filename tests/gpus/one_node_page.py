"""rows.jsonl and README.md of one_node.py's results, from what its parts have written."""
import json


def percent(x):
    return "" if x is None else f"{100 * x:.1f} %"


def table(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)]) + "\n"


def run_table(runs):
    rows = []
    for name, r in runs.items():
        late = r["taps_late_share"]
        rows.append([f"`{name}`: {r['config']}", f"{r['targets']}+{r['drafters']}", r["rows_per_step"], r["queue_rows"], r["steps"], f"{r['tokens_per_s']:,.0f}", f"{r['step_s']:.3f}",
                     *(percent(r["peak_share"][k]) for k in ("all", "targets", "drafters")), percent(r["targets_wait"]), percent(r["drafters_wait"]), percent(late),
                     f"{1e3 * r['reduce_s']:.1f} / {1e3 * r['reduce_exposed_s']:.1f}", f"{r['first_step_s']:.1f}"])
    return table(["run", "targets + drafters", "rows a step", "queue", "steps", "tokens/s", "step, s", "% of peak", "targets' %", "drafters' %", "targets wait", "drafter 0 waits",
                  "transfers end after the forward", "sum of gradients / after the backward pass, ms", "first step, s"], rows)


def rank_table(r):
    rows = [[k["rank"], k["role"], k.get("rows", ""), percent(k.get("idle_share")), percent(k.get("transfer_exposed_share")), percent(k.get("sums_share")),
             percent(k.get("sums_exposed_share")), f"{k['memory_gb']:.3f}", k.get("gpu_gb", "")] for k in r["rank"]]
    return table(["rank", "role", "rows", "idle", "waits for a transfer", "sums of gradients", "of it exposed", "memory by name, GB", "GPU in use, GB"], rows)


def memory_table(r):
    return "".join(f"* {role}: " + ", ".join(f"{name} {gb:.3f}" for name, gb in names.items()) + "\n" for role, names in r["memory_gb"].items())


def fault_table(rows):
    return table(["fault (phase, step, rank)", "gone after, s", "exit code", "processes left", "GPU memory left, GB", "resumed to the same bits", "said"],
                 [[f["fault"], f"{f['gone_s']:.2f}", f["exit_code"], f["processes_left"], "" if f["gpu_memory_left_gb"] is None else f["gpu_memory_left_gb"],
                   {True: "yes", False: "no", None: ""}[f.get("resumed_bit_equal")], f["said"]] for f in rows])


def write_page(folder, parts):
    found = {name: json.loads((folder / f"{name}.json").read_text()) for name in parts if (folder / f"{name}.json").exists()}
    results = {name: f["result"] for name, f in found.items()}
    runs = {name: results[name] for name in ("planned", "split", "queue", "second") if "tokens_per_s" in results.get(name, {})}
    rows = [{"run": name, **r} for name, r in runs.items()]
    rows += [{"run": name, **r} for name in ("kills", "resumes") for r in results.get(name, [])]
    rows += [{"run": "dumping", **results["dumping"]}] if "dumping" in results else []
    (folder / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    device = sorted({r["device"] for r in runs.values()})
    page = ["# One host", f"Made by `one_node.py` from the `.json` files beside it; {', '.join(device) or 'no run yet'}; "
            + ", ".join(f"{name} {f['seconds']:.0f} s" for name, f in found.items()) + ".\n"]
    if "doctor" in results:
        page += ["\n".join(f"* {k}: {v}" for k, v in results["doctor"].items()) + "\n"]
    if runs:
        page += ["Shares of the peak are of what the vendor declares (dense bf16), by the plan's FLOPs; empty on a CPU.\n", run_table(runs)]
        if results.get("split", {}).get("as"):
            page += ["The split asked for is the planner's own: one run for both.\n"]
    for name, r in runs.items():
        page += [f"## {name}: {r['config']}, {r['targets']} targets and {r['drafters']} drafters\n",
                 "Over the whole run, its start in it:\n", rank_table(r), "Memory of a rank by name, GB:\n", memory_table(r)]
    for name, title in (("kills", "One rank of each role killed"), ("resumes", "Killed or stopped, then `--resume auto`")):
        if name in results:
            page += [f"## {title}\n", fault_table(results[name])]
    if "dumping" in results:
        d = results["dumping"]
        page += ["## Features dumped while training\n",
                 table(["steps", "rows a step", "GB", "shards", "tokens/s", "without a dump", "lost", "targets waited for the disk, s", "verified"],
                       [[d["steps"], d["rows_per_step"], f"{d['bytes'] / 1e9:.3f}", d["shards"], f"{d['dumping']['tokens_per_s']:,.0f}",
                         f"{d['bare']['tokens_per_s']:,.0f}", percent(d["lost"]), f"{d['dumping']['dump_wait_s']:.1f}", d["verified"]]])]
    (folder / "README.md").write_text("\n".join(page))
