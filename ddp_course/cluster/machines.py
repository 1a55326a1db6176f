"""A cluster of namespaces: start it, run commands on it, throttle and cut its cables, and end it."""

import os
import shlex
import subprocess
import weakref
from collections.abc import Mapping, Sequence

from ddp_course.base.errors import InputError
from ddp_course.cluster import job
from ddp_course.cluster.available import unavailable
from ddp_course.cluster.cable import limit
from ddp_course.cluster.keeper import HEAD, address_of
from ddp_course.cluster.namespaces import build, end, entering, path
from ddp_course.cluster.slurm import Slurm

MOST_MACHINES = 64


class Cluster:
    """`nodes` machines, named node1, node2, ..., and `head`, where the switch is. The constructor starts them.

    rate    the speed of each machine's cable, in both directions, in tc's syntax: "100mbit", "1gbit"; None: no limit

    Each machine has its own network (eth0: 10.77.0.N), host name, processes and /etc/hosts, and a local disk at /mnt;
    all other files are shared (/srv by these machines only), as on a cluster with a network file system.
    The cluster ends with `close`, its `with` block, its last reference, or this process, even by SIGKILL.
    Without root it runs in a user namespace, in which every process has user id 0. Raises InputError with the sentence
    of `unavailable` if this system cannot run it.
    """

    def __init__(self, nodes: int = 2, rate: str | None = "200mbit"):
        if isinstance(nodes, bool) or not isinstance(nodes, int) or not 1 <= nodes <= MOST_MACHINES:
            raise InputError(f"nodes is a number of machines, from 1 to {MOST_MACHINES}; got {nodes!r}")
        words = limit(rate)
        if reason := unavailable():
            raise InputError(reason)
        self.nodes = [f"node{n}" for n in range(1, nodes + 1)]
        self.rates = dict.fromkeys(self.nodes, rate)
        self.cut_off: set[str] = set()  # the machines whose cable is cut
        self._process, self.pids = build(self.nodes, words)
        self._slurm = None
        self._end = weakref.finalize(self, end, self._process, self.pids, os.getpid())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        if not self._end.alive:
            return "a cluster that was closed"
        cables = {node: "cut" if node in self.cut_off else rate or "no limit" for node, rate in self.rates.items()}
        return "\n".join(f"{node}  {address_of(n)}  {cable}" for n, (node, cable) in enumerate(cables.items(), 1))

    def close(self) -> None:
        """End all processes on the machines, and the machines."""
        self._end()

    def torchrun(self, script, *args, nproc_per_node: int = 1, **more):
        """Run `script` under torchrun on every machine and return the ClusterRun; `more`: see `job.torchrun`."""
        __tracebackhide__ = True
        return job.torchrun(self, script, *args, nproc_per_node=nproc_per_node, **more)

    def slurm(self) -> Slurm:
        """A real Slurm on these machines; the first call starts it, in about a second."""
        self.check(self.nodes[0])
        self._slurm = self._slurm or Slurm(self)
        return self._slurm

    def run(
        self,
        node: str,
        command: str | Sequence[object],
        *,
        timeout: float | None = 60,
        check: bool = True,
        env: Mapping[str, object] | None = None,
    ) -> subprocess.CompletedProcess:
        """Run a command on a machine, `head` included, and return its CompletedProcess, with its output as text.

        A string is a command for the shell. Raises subprocess.TimeoutExpired after `timeout` seconds, and, if `check`,
        InputError with the stderr of a command that fails. Its background processes run on until the cluster ends.
        """
        done = subprocess.run(
            self.entering(node, command, env), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
        )
        if check and done.returncode:
            shown = command if isinstance(command, str) else shlex.join(map(str, command))
            output = done.stderr.strip() or done.stdout.strip()
            raise InputError(f"on {node}, {shown!r} ended with exit code {done.returncode}: {output}")
        return done

    def entering(self, node: str, command: str | Sequence[object], env: Mapping[str, object] | None = None) -> list:
        """The command line that runs `command` on a machine, for subprocess.Popen."""
        return entering([self.task(node, command, env)])

    def task(self, node: str, command: str | Sequence[object], env: Mapping[str, object] | None = None) -> dict:
        """The task of `enter.py` that runs a command on a machine."""
        self.check(node, HEAD)
        words = ["sh", "-c", command] if isinstance(command, str) else [str(word) for word in command]
        added = {"PATH": path()} | {name: str(value) for name, value in (env or {}).items()}
        return {"pid": self.pids[node], "command": words, "env": added}

    def set_rate(self, node: str, rate: str | None) -> None:
        """Set the speed of a machine's cable, in both directions, also during a job. None: no limit."""
        words = limit(rate)
        self.check(node)
        if words or self.rates[node] is not None:
            for machine, device in ((HEAD, self._port(node)), (node, "eth0")):
                self.run(machine, ["tc", "qdisc", "replace" if words else "del", "dev", device, "root", *words])
        self.rates[node] = rate

    def cut(self, node: str) -> None:
        """Cut a machine's cable: packets are lost without an error."""
        self.check(node)
        self.run(HEAD, ["ip", "link", "set", self._port(node), "down"])
        self.cut_off.add(node)

    def mend(self, node: str) -> None:
        """Reconnect a machine's cable."""
        self.check(node)
        self.run(HEAD, ["ip", "link", "set", self._port(node), "up"])
        self.cut_off.discard(node)

    def check(self, node: str, *more: str) -> None:
        """Raises InputError unless the cluster runs and has a machine of that name, or `node` is in `more`."""
        if not self._end.alive:
            raise InputError("this cluster was closed; start another one with Cluster(nodes=2)")
        if node not in (*self.nodes, *more):
            raise InputError(f"there is no machine {node!r}; there are {', '.join((*self.nodes, *more))}")

    def _port(self, node):
        """The name of the switch's end of a machine's cable."""
        return f"port{self.nodes.index(node) + 1}"
