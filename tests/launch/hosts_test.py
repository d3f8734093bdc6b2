"""A job on two hosts: network and UTS namespaces of this machine, joined by a cable; mpirun starts the ranks. Skipped where they may not be
made."""
import json
import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "apps"))
from program import BUILD, ROOT, Folder, run, write_config  # noqa: E402

NAME, NET = f"slip{os.getpid()}", "10.77.0."
SETTINGS = {
    "target.path": "data/tiny/target", "drafter.config": "configs/tiny-drafter.json", "data.tokens": "data/tiny/train.h5",
    "data.row_tokens": 288, "data.seed": 3, "train.steps": 6, "train.rows_per_step": 4, "train.anchors": 3, "train.precision": "fp32",
    "comm.timeout_s": 60, "comm.dead_after_s": 4, "roles.targets": 2, "roles.drafters": 2}
AGENT = """#!/bin/sh
# mpirun's remote shell: the last number of the address is that of the host
number=${1##*.}
shift
exec ip netns exec NAME-$number unshare --uts sh -c "hostname NAME-$number; $*"
""".replace("NAME", NAME)


def cable():
    """Empty, or why there can be no hosts."""
    commands = [f"ip netns add {NAME}-1", f"ip netns add {NAME}-2",
                f"ip link add {NAME}a netns {NAME}-1 type veth peer name {NAME}b netns {NAME}-2"]
    for number, end in ((1, "a"), (2, "b")):
        inside = f"ip netns exec {NAME}-{number} ip "
        commands += [inside + f"addr add {NET}{number}/24 dev {NAME}{end}", inside + f"link set {NAME}{end} up", inside + "link set lo up"]
    commands.append(f"ip netns exec {NAME}-1 unshare --uts true")
    for command in commands:
        try:
            done = subprocess.run(command.split(), capture_output=True, text=True)
        except FileNotFoundError:
            return "ip (package iproute2) is missing"
        if done.returncode != 0:
            return f"{command}: {done.stderr.strip()}"
    return ""


class Hosts(Folder):
    def train(self, fault=None):
        config = write_config(self.folder / "run.ini", {**SETTINGS, "log.dir": self.folder / "run"})
        agent = self.folder / "agent"
        agent.write_text(AGENT)
        agent.chmod(0o755)
        mpirun = ["mpirun", "-H", f"{NET}1:2,{NET}2:2", "-n", "4", "--bind-to", "none", "-x", "SLIP_TEST_FAULT"]
        for key, value in (("plm_rsh_agent", agent), ("btl", "self,vader,tcp"), ("btl_tcp_if_include", NET + "0/24"),
                           ("oob_tcp_if_include", NET + "0/24")):
            mpirun += ["--mca", key, str(value)]
        command = [*mpirun, BUILD + "/slipstream", "train", "--device", "cpu", "--config", str(config)]
        return subprocess.run(["ip", "netns", "exec", NAME + "-1", "unshare", "--uts", "sh", "-c", f'hostname {NAME}-1; exec "$@"', "sh",
                               *command], cwd=ROOT, capture_output=True, text=True, timeout=100,
                              env={**os.environ, "OMPI_MCA_orte_execute_quiet": "1", "SLIP_TEST_FAULT": fault or "none:0:0:none"})

    def metrics(self, folder):
        lines = [json.loads(line) for line in (self.folder / folder / "metrics.jsonl").read_text().splitlines()]
        return [(m["step"], m["loss"], m["grad_norm"]) for m in lines]

    def test_same_as_on_one(self):
        done = self.train()
        self.assertEqual(done.returncode, 0, done.stderr)
        one = run("train", "--device", "cpu", "--config", self.folder / "run.ini", "--set", f"log.dir={self.folder}/one", ranks=4)
        self.assertEqual(one.code, 0, one)
        self.assertEqual(len(self.metrics("run")), 6)
        self.assertEqual(self.metrics("run"), self.metrics("one"))

    def test_a_rank_that_is_killed_is_named_with_its_host(self):
        done = self.train("transfer:3:3:kill")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn(f"rank 3 on {NAME}-2 is gone, at step 3 in phase transfer", done.stderr)


why = cable()
try:
    if why:
        print(f"skipped: {why}")
        sys.exit(77)
    unittest.main(verbosity=2)
finally:
    for number in (1, 2):
        subprocess.run(["ip", "netns", "del", f"{NAME}-{number}"], capture_output=True)
