"""Shows the output of a run's ranks, by rank, read live from the files that torchrun writes.

Files, not pipes: nothing is lost when a rank, torchrun or its supervisor dies, and a process that outlives its rank
cannot hold a pipe open. print(), not an inherited stdout: ipykernel under pytest captures only what is printed.
"""

import fnmatch
import json
import os
import re
import sys
import sysconfig

from ddp_doctor.launch.first_failure import HEADER
from ddp_doctor.source_lines import here

# The colours of the course's figures, as the nearest of the 256 colours that terminals and notebooks have.
ANSI_COLOURS = [25, 178, 36, 175, 74, 166, 221, 246]


class RankOutput:
    """Reads what is new in the files of a run, sorts it into lines and results, prints the lines.

    folder   where torchrun's --log-dir is "ranks", its own log "launcher.log", its supervisor's "supervisor.log"
    run      a Run: gets `lines` and `results` by rank, in the end `launcher_lines`
    quiet    whether no line is printed
    results  whether a JSON object alone on a line of stdout is a result, and not a line
    colours  whether a rank's label is printed in its colour, unless NO_COLOR is set
    shows    shows(line): whether the line is printed

    errors   rank -> its lines of stderr since its last start
    first_traceback   rank -> the time at which its first traceback since then was written, in seconds since the epoch
    """

    rank_variable = "LOCAL_RANK"  # the environment variable that has the rank used here

    def __init__(self, folder, run, quiet, results=True, colours=True, shows=lambda line: True):
        self.folder, self.run, self.quiet, self.results = folder, run, quiet, results
        self.shows = shows
        self.colours = colours and not os.environ.get("NO_COLOR")  # https://no-color.org
        self.errors, self.first_traceback = {}, {}
        self._files = {}  # path -> [open file, bytes of its last line, which has no newline yet]

    def pass_on(self):
        """Takes all new complete lines of the files."""
        # torchrun writes ranks/<run>/attempt_<restarts>/<rank>/stdout.log and stderr.log
        for path in sorted(self.files(), key=self.attempt_rank_stream):
            _, rank, is_stderr = self.attempt_rank_stream(path)
            try:
                new = path not in self._files or self._replaced(path)
                opened = open(path, "rb") if new else None
            except FileNotFoundError:
                continue  # torchrun is replacing it now
            if new:
                self._files[path] = [opened, b""]
                if is_stderr:
                    self.errors[rank] = []
                    self.first_traceback.pop(rank, None)
            file, rest = self._files[path]
            *complete, self._files[path][1] = (rest + file.read()).split(b"\n")
            self._take_all(path, file, complete)

    def files(self):
        return paths_in(self.folder, "ranks", "*", "attempt_*", "*", "std*.log")

    def attempt_rank_stream(self, path):
        """(number of the attempt, rank, whether it is stderr) of the path of an output file."""
        attempt, rank, name = path.parts[-3:]
        return int(attempt.removeprefix("attempt_")), int(rank), name == "stderr.log"

    def label(self, rank):
        """The prefix of a line of this rank."""
        return f"rank {rank}"

    def _replaced(self, path):
        """Whether torchrun has created the file anew, as when a node joins or leaves; takes the rest of the old one."""
        file, _ = self._files[path]
        if os.fstat(file.fileno()).st_ino == path.stat().st_ino:  # it is not reused while we have the old file open
            return False
        self._close(path)
        return True

    def _close(self, path):
        """Takes the rest of a file, also a last line without a newline, and closes it."""
        file, rest = self._files.pop(path)
        self._take_all(path, file, filter(None, (rest + file.read()).split(b"\n")))
        file.close()

    def _take_all(self, path, file, raw_lines):
        """Takes lines of a file. A traceback has the file's time: a later rank's may be older that is read with it."""
        _, rank, is_stderr = self.attempt_rank_stream(path)
        known = len(self.errors.get(rank, []))
        for raw in raw_lines:
            self._take(rank, is_stderr, raw)
        if any(HEADER in line for line in self.errors.get(rank, [])[known:]):
            self.first_traceback.setdefault(rank, os.fstat(file.fileno()).st_mtime)

    def finish(self):
        """Takes the rest of all files and torchrun's own log, and closes the files."""
        self.pass_on()
        for path in list(self._files):
            self._close(path)
        for name in ("launcher.log", "supervisor.log"):
            log = self.folder / name
            self.run.launcher_lines += log.read_text(errors="replace").splitlines() if log.exists() else []

    def _take(self, rank, is_stderr, raw):
        # A progress bar overwrites its line after \r: keep the last version, which a terminal would show.
        line = raw.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
        if self.results and not is_stderr and (result := _json_object(line)) is not None:
            self.run.results[rank].update(result)
            return
        self.run.lines[rank].append(line)
        if is_stderr:
            self.errors[rank].append(line)
        if not self.quiet and self.shows(line):
            line = shorter_paths(re.sub(rf"^\[rank{rank}\]: ?", "", line))  # torch's prefix says the same as ours
            label = f"[{self.label(rank)}]"
            colour = ANSI_COLOURS[rank % len(ANSI_COLOURS)]
            print(f"\x1b[38;5;{colour}m{label}\x1b[0m {line}" if self.colours else f"{label} {line}", flush=True)


def paths_in(folder, pattern, *deeper):
    """The paths in `folder` that match a pattern for each level; none of a folder that is removed meanwhile.

    Before Python 3.13, Path.glob raises FileNotFoundError for such a folder.
    """
    try:
        names = fnmatch.filter(os.listdir(folder), pattern)
    except OSError:
        return
    for name in names:
        if deeper:
            yield from paths_in(folder / name, *deeper)
        else:
            yield folder / name


def shorter_paths(text):
    """`text` with the path of every Python file cut to the part below the working folder or an import folder."""
    roots = {here(), *sys.path, sysconfig.get_path("purelib"), sysconfig.get_path("stdlib")} - {"", "/"}
    for root in sorted(roots, key=len, reverse=True):  # site-packages before the standard library, which contains it
        text = re.sub(rf"{re.escape(str(root))}/([^\s\"]+\.py)\b", r"\1", text)
    return text


def _json_object(line):
    """The dictionary that the line is in JSON; None if it is none."""
    if not line.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
