"""A real Slurm on the machines of a cluster: munge and the controller on `head`, a slurmd on each machine.

It needs no files in /etc, no systemd and no cgroups: its files are at /srv, which only the machines see, and it ends
with them. As on a real cluster, the files of jobs are on a file system that all machines share.
"""

import functools
import os
import pwd
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ddp_course.base.errors import InputError
from ddp_course.cluster.keeper import HEAD, SWITCH_ADDRESS
from ddp_course.cluster.namespaces import path, user_namespace_options

if TYPE_CHECKING:
    from ddp_course.cluster.machines import Cluster

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue", "sinfo")
HOME = "/srv/slurm"  # all machines share it
START_TIMEOUT = 120  # seconds
QUERY_INTERVAL = 2.0  # seconds between queries of the controller, each of which starts a process
POLL_INTERVAL = 0.2  # seconds between calls of `until`
# cred_expire: a requeued job waits until its old credential expires, by default two minutes.
# SlurmdTimeout: after this many seconds without an answer a machine is down, and its jobs are requeued.
CONFIGURATION = f"""\
ClusterName=laptop
SlurmctldHost={HEAD}({SWITCH_ADDRESS})
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
NodeName=node[1-{{nodes}}] CPUs=1 RealMemory=1 State=UNKNOWN
PartitionName=lab Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=2
"""
FINAL_STATES = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"}


@functools.cache
def slurm_unavailable() -> str | None:
    """None if Slurm's programs are installed, else a sentence that says how to install them."""
    missing = [name for name in PROGRAMS if not shutil.which(name, path=path())]
    if not missing:
        return None
    return (
        f"Slurm is not installed ({missing[0]} is missing): on Debian and Ubuntu, sudo apt-get install "
        f"--no-install-recommends slurm-wlm munge; none of it has to be started."
    )


class Slurm:
    """Slurm on `cluster`; create it with `cluster.slurm()`.

    Partitions: lab, and urgent, whose jobs preempt those of lab. Each machine has one CPU. Raises InputError if Slurm
    is not installed, or if a machine is not idle after START_TIMEOUT.
    """

    def __init__(self, cluster: "Cluster") -> None:
        if reason := slurm_unavailable():
            raise InputError(reason)
        self.cluster = cluster
        self._outputs: dict[int, Path] = {}
        # slurmd cannot run as the root of a user namespace, which may not change its groups. There Slurm and its jobs
        # run as the user of this process.
        ids = [f"--map-user={os.getuid()}", f"--map-group={os.getgid()}"]
        self._as_user = ["unshare", "--user", *ids] if user_namespace_options() else []
        self._set_up(CONFIGURATION.format(user=_user_name(os.getuid()), nodes=len(cluster.nodes)))
        deadline = time.monotonic() + START_TIMEOUT
        idle = ["idle"] * len(cluster.nodes)
        while self.run("sinfo", "-h", "-N", "-p", "lab", "-o", "%T", check=False).split() != idle:
            if time.monotonic() > deadline:
                logs = cluster.run(HEAD, f"tail -n 5 {HOME}/log/*", check=False).stdout
                raise InputError(f"Slurm was not up after {START_TIMEOUT:g} s; its logs end with:\n{logs}")
            time.sleep(0.05)

    def _set_up(self, configuration: str) -> None:
        """Write the files, and start munge, the controller and the slurmds."""
        run, as_user = self.cluster.run, self._as_user
        make_files = f"""
            umask 022; mkdir -p {HOME}/state {HOME}/spool {HOME}/log {HOME}/run; cd {HOME}
            (umask 077; head -c 1024 /dev/urandom >munge.key); cat >slurm.conf <<'END'\n{configuration}END
        """
        run(HEAD, [*as_user, "sh", "-c", make_files])
        files = {
            "key-file": "munge.key",
            "socket": "run/munge.socket",
            "pid-file": "run/munged.pid",
            "log-file": "log/munged.log",
            "seed-file": "run/munged.seed",
        }
        munged = ["munged", "--force", *(f"--{option}={HOME}/{file}" for option, file in files.items())]
        run(HEAD, [*as_user, *munged])
        run(HEAD, [*as_user, "slurmctld", "-f", f"{HOME}/slurm.conf"])
        for node in self.cluster.nodes:
            run(node, [*as_user, "sh", "-c", f"mkdir -p {HOME}/spool/{node}; exec slurmd -f {HOME}/slurm.conf"])

    def run(self, *words: object, check: bool = True, env: Mapping[str, object] | None = None) -> str:
        """Run one of Slurm's commands on `head`, such as run("sinfo"), and return its output.

        Raises InputError with its output if it fails and `check` is true.
        """
        task = self.task(*words)
        env = task["env"] | dict(env or {})
        return self.cluster.run(HEAD, task["command"], check=check, env=env, timeout=120).stdout

    def task(self, *words: object) -> dict:
        """The task of `enter.py` that runs a command on `head`."""
        return self.cluster.task(HEAD, [*self._as_user, *words], {"SLURM_CONF": f"{HOME}/slurm.conf"})

    def sbatch(
        self, file: str | Path, *args: object, options: Sequence[object] = (), env: Mapping[str, object] | None = None
    ) -> int:
        """Submit a batch script with its arguments; returns the job's number.

        options: such as "--time=1"; they override the script's #SBATCH lines. env: added to the job's environment.
        """
        if not Path(file).is_file():
            raise InputError(f"there is no batch script {str(file)!r} in {os.getcwd()}")
        return int(self.run("sbatch", "--parsable", *options, file, *args, env=env))

    def squeue(self) -> str:
        """The queue, as squeue prints it."""
        return self.run("squeue")

    def job(self, job: int) -> dict[str, str]:
        """The controller's record of a job: "JobState", "Restarts", "ExitCode", "NodeList", "StdOut", ..."""
        return dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", self.run("scontrol", "show", "job", job, "--oneliner")))

    def output(self, job: int) -> str:
        """The output of a job so far; empty if it has not begun."""
        if job not in self._outputs:
            self._outputs[job] = Path(self.job(job)["StdOut"])
        file = self._outputs[job]
        return file.read_text(errors="replace") if file.exists() else ""

    def scancel(self, job: int, *options: object) -> None:
        """End a job, or send it a signal: scancel(job, "--signal=TERM")."""
        self.run("scancel", *options, job)

    def wait(self, job: int, until: Callable[[], object] | None = None, timeout: float = 300) -> dict[str, str]:
        """Wait until a job has ended or `until()` is true; returns `job(job)`. Raises InputError after `timeout` s."""
        deadline = time.monotonic() + timeout
        while (job_state := self.job(job))["JobState"] not in FINAL_STATES:
            if time.monotonic() > deadline:
                raise InputError(
                    f"job {job} was still {job_state['JobState']} after {timeout:g} s; the end of what it "
                    f"printed:\n{self.output(job)[-2000:]}"
                )
            next_query = time.monotonic() + QUERY_INTERVAL
            while time.monotonic() < next_query:
                if until and until():
                    return self.job(job)
                time.sleep(POLL_INTERVAL)
        return job_state


def _user_name(uid: int) -> str:
    """The name of a user. Raises InputError if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise InputError(f"Slurm needs a user with a name, and user {uid} has none in /etc/passwd") from None
