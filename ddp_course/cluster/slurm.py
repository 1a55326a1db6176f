"""A real Slurm on the machines of a cluster: munge and the controller on `head`, a slurmd on each machine.

Nothing of it stands in /etc or needs systemd or cgroups: its files are at /srv, which only the machines see, and it
ends with them. As on a real cluster, the files of jobs lie on a file system that all machines share.
"""

import functools
import os
import pwd
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ddp_course.base.errors import InputError
from ddp_course.cluster.namespaces import HEAD, as_user, path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue", "sinfo")
HOME = "/srv/slurm"  # on every machine
ASK = 2.0  # seconds between two questions to the controller: each is a process of its own
LOOK = 0.2  # seconds between two looks at what is waited for
# cred_expire: a job that was requeued waits as long as its old credential is valid, two minutes if nothing is said.
# SlurmdTimeout: after so many seconds without an answer a machine is down, and what ran on it starts again elsewhere.
CONFIGURATION = f"""\
ClusterName=laptop
SlurmctldHost={HEAD}(10.77.0.254)
SlurmUser={{user}}
SlurmdUser={{user}}
AuthType=auth/munge
AuthInfo=socket={HOME}/run/munge.socket,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
KillWait=5
SlurmdTimeout=10
MinJobAge=86400
StateSaveLocation={HOME}/state
SlurmctldPidFile={HOME}/run/slurmctld.pid
SlurmctldLogFile={HOME}/log/slurmctld.log
SlurmdSpoolDir={HOME}/spool/%n
SlurmdPidFile={HOME}/run/%n.pid
SlurmdLogFile={HOME}/log/%n.log
NodeName=node[1-{{nodes}}] CPUs={{cpus}} RealMemory=1 State=UNKNOWN
PartitionName=lab Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
"""
OVER = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"}


@functools.cache
def slurm_unavailable() -> str | None:
    """None if Slurm's programs are installed, else one sentence with what to do."""
    missing = [name for name in PROGRAMS if not shutil.which(name, path=path())]
    if not missing:
        return None
    return (
        f"Slurm is not installed ({missing[0]} is missing): on Debian and Ubuntu, sudo apt-get install "
        f"--no-install-recommends slurm-wlm munge; none of it has to be started."
    )


class Slurm:
    """Slurm on `cluster`; use `cluster.slurm()`. Partitions: lab, and urgent, whose jobs preempt those of lab.

    cpus   that each machine says it has; a job takes some of them
    """

    def __init__(self, cluster, cpus: int = 1, timeout: float = 120):
        if reason := slurm_unavailable():
            raise InputError(reason)
        self.cluster = cluster
        self._outputs: dict[int, Path] = {}
        # slurmd cannot be the root of a user namespace, who may not change its groups. So there all of Slurm, and its
        # jobs, run as whoever has started this process.
        ids = [f"--map-user={os.getuid()}", f"--map-group={os.getgid()}"]
        self._as_user = ["unshare", "--user", *ids] if as_user() else []
        self._set_up(CONFIGURATION.format(user=_name(os.getuid()), nodes=len(cluster.nodes), cpus=cpus))
        deadline = time.monotonic() + timeout
        idle = ["idle"] * len(cluster.nodes)
        while self.run("sinfo", "-h", "-N", "-p", "lab", "-o", "%T", check=False).split() != idle:
            if time.monotonic() > deadline:
                logs = cluster.run(HEAD, f"tail -n 5 {HOME}/log/*", check=False).stdout
                raise InputError(f"Slurm was not up after {timeout:g} s; its logs end with:\n{logs}")
            time.sleep(0.05)

    def _set_up(self, configuration):
        on, inside = self.cluster.run, self._as_user
        on(
            HEAD,
            [
                *inside,
                "sh",
                "-c",
                f"""
            umask 022; mkdir -p {HOME}/state {HOME}/spool {HOME}/log {HOME}/run; cd {HOME}
            (umask 077; head -c 1024 /dev/urandom >munge.key); cat >slurm.conf <<'END'\n{configuration}END
        """,
            ],
        )
        files = {
            "key-file": "munge.key",
            "socket": "run/munge.socket",
            "pid-file": "run/munged.pid",
            "log-file": "log/munged.log",
            "seed-file": "run/munged.seed",
        }
        munged = ["munged", "--force", *(f"--{option}={HOME}/{file}" for option, file in files.items())]
        on(HEAD, [*inside, *munged])
        on(HEAD, [*inside, "slurmctld", "-f", f"{HOME}/slurm.conf"])
        for node in self.cluster.nodes:
            on(node, [*inside, "sh", "-c", f"mkdir -p {HOME}/spool/{node}; exec slurmd -f {HOME}/slurm.conf"])

    def run(self, *words: object, check: bool = True, env: Mapping[str, object] | None = None) -> str:
        """What one of Slurm's commands, run on `head`, prints: run("sinfo"), run("scontrol", "show", "node").

        Raises InputError with what it said if it fails and `check`.
        """
        task = self.task(*words)
        env = task["env"] | dict(env or {})
        return self.cluster.run(HEAD, task["command"], check=check, env=env, timeout=120).stdout

    def task(self, *words: object) -> dict:
        """What `enter.py` needs to know of a command on `head`."""
        return self.cluster.task(HEAD, [*self._as_user, *words], {"SLURM_CONF": f"{HOME}/slurm.conf"})

    def sbatch(
        self, file: str | Path, *args: object, options: Sequence[object] = (), env: Mapping[str, object] | None = None
    ) -> int:
        """Submit a batch script with its arguments; returns the job's number. `options` win over the script's #SBATCH
        lines, such as "--time=1"; `env` is added to this process's environment, which the job gets."""
        if not Path(file).is_file():
            raise InputError(f"there is no batch script {str(file)!r} in {os.getcwd()}")
        return int(self.run("sbatch", "--parsable", *options, file, *args, env=env))

    def squeue(self) -> str:
        """The queue, as squeue prints it."""
        return self.run("squeue")

    def job(self, job: int) -> dict[str, str]:
        """What the controller knows of a job: "JobState", "Restarts", "ExitCode", "NodeList", "StdOut", ..."""
        return dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", self.run("scontrol", "show", "job", job, "--oneliner")))

    def output(self, job: int) -> str:
        """What a job has printed until now; empty if it has not begun."""
        if job not in self._outputs:
            self._outputs[job] = Path(self.job(job)["StdOut"])
        file = self._outputs[job]
        return file.read_text(errors="replace") if file.exists() else ""

    def scancel(self, job: int, *options: object) -> None:
        """End a job, or send it a signal: scancel(job, "--signal=TERM")."""
        self.run("scancel", *options, job)

    def requeue(self, job: int) -> None:
        """Put a running job back into the queue: SIGTERM now, SIGKILL after five seconds."""
        self.run("scontrol", "requeue", job)

    def wait(self, job: int, until: Callable[[], object] | None = None, timeout: float = 300) -> dict[str, str]:
        """Wait until a job is over, or `until()` is true; returns `job(job)`. InputError after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while (found := self.job(job))["JobState"] not in OVER:
            if time.monotonic() > deadline:
                raise InputError(
                    f"job {job} was still {found['JobState']} after {timeout:g} s; the end of what it "
                    f"printed:\n{self.output(job)[-2000:]}"
                )
            ask_again = time.monotonic() + ASK
            while time.monotonic() < ask_again:
                if until and until():
                    return self.job(job)
                time.sleep(LOOK)
        return found


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise InputError(f"Slurm needs a user with a name, and user {uid} has none in /etc/passwd") from None
