"""A Slurm of its own on this machine: munged, slurmctld and a slurmd for each virtual node, in a folder that goes away."""
import ctypes
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel", "sinfo")
CPUS, GPUS = 8, 8  # of a node, as Slurm believes
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={run}/munge.socket
StateSaveLocation={run}/state
SlurmdSpoolDir={run}/spool-%n
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/slurmd-%n.pid
SlurmctldLogFile={run}/slurmctld.log
SlurmdLogFile={run}/slurmd-%n.log
# the PMIx servers of two nodes would meet in /tmp
TmpFS={run}/tmp-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=10
MpiDefault=none
GresTypes=gpu
# more CPUs than the machine has
SlurmdParameters=config_overrides
{nodes}
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = ("NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} Boards=1 SocketsPerBoard=1 "
        "CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory=1000 Gres=gpu:fake:{gpus} State=UNKNOWN\n")
# The "nodes" share a kernel: with OpenMPI's shared memory, ranks of two of them end in a segmentation fault.
ENVIRONMENT = {"OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "lo"}


def missing():
    """Why there can be no cluster here; empty: there can."""
    if os.geteuid() != 0:
        return "needs root, to start the daemons"
    absent = [p for p in PROGRAMS if shutil.which(p) is None]
    return f"needs {', '.join(absent)}: launch/install_packages --tests" if absent else ""


def free_ports(number):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Cluster:
    def __init__(self, nodes):
        self.names = [f"node{i + 1}" for i in range(nodes)]
        self.run = pathlib.Path(tempfile.mkdtemp(prefix="slip-slurm-"))
        self.run.chmod(0o755)  # munge refuses a folder that others may write, and Slurm one that they may not read
        self.daemons = []
        try:
            self.configure()
            self.start()
        except BaseException:
            self.stop()
            raise

    def configure(self):
        for folder in ("state", "gpu", *(f"{kind}-{n}" for kind in ("spool", "tmp") for n in self.names)):
            (self.run / folder).mkdir()
        for i in range(GPUS):  # Slurm wants a device file for each GPU: clones of /dev/null
            os.mknod(self.run / f"gpu/{i}", 0o20666, os.makedev(1, 3))
        key = self.run / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        host = socket.gethostname().split(".")[0]
        port, *ports = free_ports(1 + len(self.names))
        lines = "".join(NODE.format(name=n, host=host, port=p, cpus=CPUS, gpus=GPUS) for n, p in zip(self.names, ports))
        self.config = self.run / "slurm.conf"
        self.config.write_text(CONFIG.format(host=host, port=port, run=self.run, nodes=lines))
        (self.run / "gres.conf").write_text(f"Name=gpu Type=fake File={self.run}/gpu/[0-{GPUS - 1}]\n")
        (self.run / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nConstrainDevices=no\n")
        # Clusters on one machine give jobs the same names: ranks of one must not find those of another at a port used before.
        ports = {"OMPI_MCA_btl_tcp_port_min_v4": str(20000 + os.getpid() % 120 * 100), "OMPI_MCA_btl_tcp_port_range_v4": "100"}
        self.environment = {**os.environ, **ENVIRONMENT, **ports, "SLURM_CONF": str(self.config)}

    def daemon(self, *command):
        with open(self.run / f"{command[0]}.out", "a") as out:
            self.daemons.append(subprocess.Popen(command, stdout=out, stderr=out, env=self.environment, preexec_fn=die_with_parent))

    def start(self):
        self.daemon("munged", "--foreground", "--force", f"--key-file={self.run}/munge.key", f"--socket={self.run}/munge.socket",
                    f"--pid-file={self.run}/munged.pid", f"--log-file={self.run}/munged.log", f"--seed-file={self.run}/munge.seed")
        self.wait_for(lambda: (self.run / "munge.socket").exists(), "munged's socket")
        self.daemon("slurmctld", "-D")
        for name in self.names:
            self.daemon("slurmd", "-D", "-N", name)
        self.wait_for(lambda: self.call("sinfo", "-h", "-N", "-o", "%T", check=False).split() == ["idle"] * len(self.names), "idle nodes")

    def wait_for(self, what, name, seconds=30):
        end = time.monotonic() + seconds
        while not (found := what()):
            if time.monotonic() > end:
                raise AssertionError(f"no {name} within {seconds} s\n" + self.logs())
            time.sleep(0.1)
        return found

    def logs(self):
        return "".join(f"== {p.name}\n" + "".join(p.read_text(errors="replace").splitlines(True)[-10:])
                       for p in sorted([*self.run.glob("*.log"), *self.run.glob("*.out")]))

    def call(self, *command, check=True, **options):
        done = subprocess.run(list(map(str, command)), env=self.environment, capture_output=True, text=True, timeout=60, **options)
        if check and done.returncode != 0:
            raise AssertionError(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def state(self, job):
        """As `scontrol show job` says it: {"JobState": "RUNNING", ...}."""
        return dict(word.split("=", 1) for word in self.call("scontrol", "show", "job", job).split() if "=" in word)

    def stop(self):
        if len(self.daemons) > 1:
            subprocess.run(["scancel", "--full", "--signal=KILL", "--user=root"], env=self.environment, capture_output=True, timeout=30)
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.run, ignore_errors=True)
