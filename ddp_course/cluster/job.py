"""Run torchrun on every machine of a cluster as one job; the result is a Run with each rank's machine."""

import shlex
import signal
import stat
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ddp_doctor.launch.first_failure import Failure, Report, blame, launcher_text, torchruns_report
from ddp_doctor.launch.rank_output import RankOutput, paths_in, shorter_paths

from ddp_course.cluster import namespaces
from ddp_course.launcher.launch import (
    Run,
    RunTimedOut,
    added_variables,
    check_input,
    command_line,
    raise_failure,
    short_path,
    supervised,
    supervised_environment,
    timeout_message,
)

PORT = 29500
# torchrun starts a rank by this script (PYTHON_EXEC), not by Python. It writes RANK into the rank's log folder.
PYTHON_WRAPPER = """#!/bin/sh
echo "$RANK" > "${{TORCHELASTIC_ERROR_FILE%/*}}/rank"
unset PYTHON_EXEC
exec {python} "$@"
"""


@dataclass(repr=False)
class ClusterRun(Run):
    """A Run on several machines, with ranks of the whole job.

    nodes: rank -> machine. node_exit_codes, node_lines: machine -> exit code and log of its torchrun.
    """

    nodes: dict[int, str] = field(default_factory=dict)
    node_exit_codes: dict[str, int] = field(default_factory=dict)
    node_lines: dict[str, list[str]] = field(default_factory=dict)

    def __repr__(self):
        return f"{len(self.node_lines)} machines, {super().__repr__()}"

    def name(self, rank: int) -> str:
        """The name of a rank with its machine, for messages."""
        return f"rank {rank} on {self.nodes[rank]}" if rank in self.nodes else f"rank {rank}"


def torchrun(
    cluster,
    script: str | Path,
    *args,
    nproc_per_node: int = 1,
    timeout: float | None = 120,
    env: Mapping[str, object] | None = None,
    check: bool = True,
    quiet: bool = False,
    torchrun_args: Iterable[str] = (),
    env_of: Mapping[str, Mapping[str, object]] | None = None,
    torchrun_args_of: Mapping[str, Iterable[str]] | None = None,
    at: Mapping[str, Callable[[], object]] | None = None,
) -> ClusterRun:
    """Run `script` with `args` in `nproc_per_node` processes on every machine and return the finished ClusterRun.

    timeout, env, check, quiet   as for launcher.torchrun, which raises the same exceptions
    torchrun_args     options that extend or override the rendezvous at node1, such as "--max-restarts=1"
    env_of, torchrun_args_of     both for single machines: {"node2": {"GLOO_SOCKET_IFNAME": "lo"}}
    at                calls to make during the job, each once, when the first line that contains a text appears:
                      {"step 20": lambda: cluster.cut("node2")}

    When one machine's torchrun has failed, the others get five seconds, then SIGTERM, as from a scheduler.
    """
    __tracebackhide__ = True
    torchrun_args = [str(arg) for arg in torchrun_args]
    args_of = {node: [str(arg) for arg in node_args] for node, node_args in (torchrun_args_of or {}).items()}
    for node in (*cluster.nodes, *args_of, *(env_of or {})):
        cluster.check(node)
    check_input(script, nproc_per_node, [*torchrun_args, *(arg for node_args in args_of.values() for arg in node_args)])
    size = len(cluster.nodes) * nproc_per_node
    added = added_variables(size, env, torchrun_args)
    options = [
        f"--nnodes={len(cluster.nodes)}",
        f"--nproc-per-node={nproc_per_node}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={cluster.nodes[0]}:{PORT}",
        f"--rdzv-id={uuid.uuid4().hex[:8]}",
        *torchrun_args,
    ]
    script_and_args = [str(short_path(script)), *map(str, args)]
    run = ClusterRun(
        command=command_line(added, [*options, *script_and_args]),
        lines={rank: [] for rank in range(size)},
        results={rank: {} for rank in range(size)},
        node_lines={node: [] for node in cluster.nodes},
    )
    if not quiet:
        print(f"on {', '.join(cluster.nodes)}: {run.command}", flush=True)
        for node in sorted(args_of.keys() | (env_of or {}).keys()):
            settings = [f"{name}={value}" for name, value in (env_of or {}).get(node, {}).items()]
            print(f"on {node} also: {shlex.join([*settings, *args_of.get(node, [])])}", flush=True)

    folder = Path(tempfile.mkdtemp(prefix="ddp_course_run_"))
    python = folder / "python"
    python.write_text(PYTHON_WRAPPER.format(python=shlex.quote(sys.executable)))
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    tasks = []
    for node in cluster.nodes:
        (folder / node).mkdir()
        log_options = ["--redirects=3", f"--log-dir={folder / node / 'ranks'}", *args_of.get(node, [])]
        # -P: no file in this folder can shadow a module that torchrun imports
        command = [sys.executable, "-P", "-m", "torch.distributed.run", *options, *log_options, *script_and_args]
        task = cluster.task(node, command, {**(env_of or {}).get(node, {}), "PYTHON_EXEC": python})
        files = {"log": folder / node / "launcher.log", "exit": folder / node / "exit_code"}
        tasks.append(task | {name: str(path) for name, path in files.items()})
    output = ClusterOutput(folder, run, quiet, at or {})
    environment = supervised_environment() | added
    running = supervised(namespaces.entering(tasks), environment, folder, timeout, output)

    _judge(run, output, cluster.cut_off)
    if check and run.timed_out:
        raise RunTimedOut(timeout_message(run, timeout, running, run.name) + _cut_cables(cluster.cut_off), run)
    if check:
        raise_failure(run)
    return run


class ClusterOutput(RankOutput):
    """The output of the ranks of several torchruns, each with its files in a folder named as its machine."""

    rank_variable = "RANK"

    def __init__(self, folder, run, quiet, at):
        super().__init__(folder, run, quiet)
        self._at = dict(at)

    def _take(self, rank, is_stderr, raw):
        super()._take(rank, is_stderr, raw)
        for text in [text for text in self._at if text.encode() in raw]:
            self._at.pop(text)()

    def files(self):
        # The file exists before the rank can write.
        paths = paths_in(self.folder, "*", "ranks", "*", "attempt_*", "*", "std*.log")
        return (path for path in paths if self._number(path) is not None)

    def attempt_rank_stream(self, path):
        attempt, _, is_stderr = super().attempt_rank_stream(path)
        rank = self._number(path)
        self.run.nodes[rank] = self._node(path)
        return attempt, rank, is_stderr

    def label(self, rank):
        return f"rank {rank} {self.run.nodes[rank]}"

    def finish(self):
        self.ranks_by_node = {}  # machine -> {local rank: rank}, of its last start
        for path in sorted(self.files(), key=self.attempt_rank_stream):
            self.ranks_by_node.setdefault(self._node(path), {})[int(path.parts[-2])] = self._number(path)
        super().finish()
        self.run.nodes = dict(sorted(self.run.nodes.items()))
        for node in self.run.node_lines:
            log, code = self.folder / node / "launcher.log", self.folder / node / "exit_code"
            self.run.node_lines[node] = log.read_text(errors="replace").splitlines() if log.exists() else []
            if code.exists() and code.read_text():
                self.run.node_exit_codes[node] = int(code.read_text())
            self.run.launcher_lines += [f"[{node}] {line}" for line in self.run.node_lines[node]]

    def _node(self, path):
        """The machine whose torchrun writes this log."""
        return path.relative_to(self.folder).parts[0]

    def _number(self, path):
        """The rank of a log folder; None if its number is not written yet."""
        try:
            text = path.with_name("rank").read_text()
        except OSError:
            return None
        return int(text) if text.strip() and int(text) in self.run.lines else None


def _judge(run, output, cut_off):
    """Set run.exit_codes and, after a failure, run.failure."""
    if run.exit_code == 0:
        run.exit_codes = dict.fromkeys(run.lines, 0)
        return
    report = Report({})
    for node, ranks in output.ranks_by_node.items():
        lines = run.node_lines[node]
        node_report = torchruns_report(lines, ranks)
        if not node_report.failed and run.node_exit_codes.get(node) != 0:
            node_report = infer_report(lines, ranks.values(), output.first_traceback)
        report.codes |= node_report.codes
        report.failed |= node_report.failed
        report.got_sigterm |= node_report.got_sigterm
        report.left_early += node_report.left_early
    run.exit_codes = report.codes = dict(sorted(report.codes.items()))
    if report.failed:
        failure = blame(report, run.lines, output.errors, output.first_traceback, run.name)
    else:
        failed_nodes = [node for node, code in run.node_exit_codes.items() if code] or list(run.node_lines)
        text = launcher_text(run.exit_code, run.node_lines[failed_nodes[0]])
        failure = Failure(None, run.exit_code, f"on {failed_nodes[0]}: {text}")
    if not run.timed_out:
        text = shorter_paths(failure.text).rstrip() + _cut_cables(cut_off)
        run.failure = Failure(failure.rank, failure.exit_code, text)


def infer_report(lines, ranks, first_traceback):
    """Infer the Report for `ranks` whose torchrun was stopped or killed before it reported on them.

    If it was waiting for other machines at its exit barrier, its ranks had ended well. Else a rank with a traceback has
    failed, and the others were stopped.
    """
    codes = dict.fromkeys(ranks, 0)
    if not any("_exit_barrier" in line for line in lines):
        codes = {rank: 1 if rank in first_traceback else -signal.SIGTERM for rank in ranks}
    failed = {rank for rank, code in codes.items() if code == 1}
    got_sigterm = {rank for rank, code in codes.items() if code < 0}
    return Report(codes, failed, got_sigterm, [rank for rank, code in codes.items() if code == 0])


def _cut_cables(cut_off):
    """A sentence that lists the cut cables; empty if none is cut."""
    if not cut_off:
        return ""
    return "\n" + ", ".join(f"the cable of {node} is cut" for node in sorted(cut_off))
