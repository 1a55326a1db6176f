"""A cluster of namespaces: started, used, its cables slowed down and cut, ended."""

import os
import shlex
import subprocess
import weakref
from collections.abc import Mapping, Sequence

from ddp_course.base.errors import InputError
from ddp_course.cluster import job
from ddp_course.cluster.available import unavailable
from ddp_course.cluster.cable import limit
from ddp_course.cluster.namespaces import HEAD, SWITCH, build, end, entering, path
from ddp_course.cluster.slurm import Slurm

MOST = 64  # machines


class Cluster:
    """`nodes` machines, named node1, node2, ..., and `head`, where the switch is. It runs from here on.

    rate    the speed of each machine's cable, both ways, as tc writes it: "100mbit", "1gbit"; None: no limit

    Each machine has its own network (eth0: 10.77.0.N), host name, processes and /etc/hosts, and a disk of its own at
    /mnt; all other files are shared (/srv among these machines alone), as on a cluster with a network file system.
    It ends with `close`, with its `with` block, with the last reference to it, and with this process, even by SIGKILL.
    Without root it runs in a user namespace, in which every process believes to be root. Raises InputError where it
    cannot run, with the sentence of `unavailable`.
    """

    def __init__(self, nodes: int = 2, rate: str | None = "200mbit"):
        if isinstance(nodes, bool) or not isinstance(nodes, int) or not 1 <= nodes <= MOST:
            raise InputError(f"nodes is a number of machines, from 1 to {MOST}; got {nodes!r}")
        words = limit(rate)
        if reason := unavailable():
            raise InputError(reason)
        self.nodes = [f"node{n}" for n in range(1, nodes + 1)]
        self.rates = dict.fromkeys(self.nodes, rate)
        self.cut_off: set[str] = set()  # the machines whose cable is cut
        self._holder, self.pids = build(self.nodes, words)
        self._slurm = None
        self._end = weakref.finalize(self, end, self._holder, self.pids, os.getpid())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        if not self._end.alive:
            return "a cluster that was closed"
        cables = {node: "cut" if node in self.cut_off else rate or "no limit" for node, rate in self.rates.items()}
        return "\n".join(f"{node}  10.77.0.{n}  {cable}" for n, (node, cable) in enumerate(cables.items(), 1))

    def close(self) -> None:
        """End everything on the machines, and the machines."""
        self._end()

    def torchrun(self, script, *args, nproc_per_node: int = 1, **more):
        """Run `script` under torchrun on every machine; see `job.torchrun` for what `more` may be."""
        __tracebackhide__ = True
        return job.torchrun(self, script, *args, nproc_per_node=nproc_per_node, **more)

    def slurm(self, cpus: int = 1) -> Slurm:
        """A real Slurm on these machines, with `cpus` on each; the first call starts it, in about a second."""
        self.check(self.nodes[0])
        self._slurm = self._slurm or Slurm(self, cpus)
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
        """Run a command (a string is for the shell) on a machine, `head` included; its output is text in the result.

        Raises InputError with what it wrote to stderr if `check` and it fails, subprocess.TimeoutExpired. What it
        leaves in the background runs on, to the end of the cluster at most.
        """
        done = subprocess.run(
            self.entering(node, command, env), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
        )
        if check and done.returncode:
            shown = command if isinstance(command, str) else shlex.join(map(str, command))
            said = done.stderr.strip() or done.stdout.strip()
            raise InputError(f"on {node}, {shown!r} ended with exit code {done.returncode}: {said}")
        return done

    def entering(self, node: str, command: str | Sequence[object], env: Mapping[str, object] | None = None) -> list:
        """The command line that runs `command` on a machine, for subprocess.Popen."""
        return entering([self.task(node, command, env)])

    def task(self, node: str, command: str | Sequence[object], env: Mapping[str, object] | None = None) -> dict:
        """What `enter.py` needs to know of it."""
        self.check(node, HEAD)
        words = ["sh", "-c", command] if isinstance(command, str) else [str(word) for word in command]
        added = {"PATH": path()} | {name: str(value) for name, value in (env or {}).items()}
        return {"pid": self.pids[node], "command": words, "env": added}

    def set_rate(self, node: str, rate: str | None) -> None:
        """Give a machine's cable another speed, both ways, also while a job runs. None: no limit."""
        words = limit(rate)
        self.check(node)
        verb = ["replace"] if words else ["del"]
        known = bool(words) or self.rates[node] is not None
        for where, device in ((SWITCH, self._port(node)), (node, "eth0")) if known else ():
            self._on_switch_or(where, ["tc", "qdisc", *verb, "dev", device, "root", *words])
        self.rates[node] = rate

    def cut(self, node: str) -> None:
        """Pull a machine's cable: from now on nothing arrives, and nobody is told."""
        self.check(node)
        self._on_switch_or(SWITCH, ["ip", "link", "set", self._port(node), "down"])
        self.cut_off.add(node)

    def mend(self, node: str) -> None:
        """Plug it in again."""
        self.check(node)
        self._on_switch_or(SWITCH, ["ip", "link", "set", self._port(node), "up"])
        self.cut_off.discard(node)

    def check(self, node: str, *more: str) -> None:
        """Raises InputError unless the cluster runs and has a machine of that name."""
        if not self._end.alive:
            raise InputError("this cluster was closed; start another one with Cluster(nodes=2)")
        if node not in (*self.nodes, *more):
            raise InputError(f"there is no machine {node!r}; there are {', '.join((*self.nodes, *more))}")

    def _port(self, node):
        return f"port{self.nodes.index(node) + 1}"

    def _on_switch_or(self, where, words):
        task = {"pid": self.pids[where], "command": words, "env": {"PATH": path()}}
        done = subprocess.run(entering([task]), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise InputError(f"{shlex.join(words)}: {done.stderr.strip() or done.returncode}")
