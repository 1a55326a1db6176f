"""For every test: one thread per process, a cache folder of this session, and no process left behind."""

import os
import re
import signal
import sys
import threading
import time
import uuid
from pathlib import Path

import psutil
import pytest
from ddp_doctor.launch.supervise import environment_of, sweep

TEST_VARIABLE = "DDP_COURSE_TEST"
# Processes that a library, or `warm_server`, starts once and keeps until this one ends.
KEPT = "multiprocessing.resource_tracker", "multiprocessing.forkserver", "compile_worker", "warm_server.py"

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything imports torch
if not any("test_gpu.py" in word for word in sys.argv):  # `make gpu` runs that file alone; all others are for CPUs
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
# Some thousand processes import the course and these tests: write their bytecode files.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
STARTUP = str(Path(__file__).with_name("startup"))
if STARTUP not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [STARTUP, os.environ.get("PYTHONPATH")]))
# jsonschema would import this, for a second, to check URIs, which nbformat does not use.
sys.modules["rfc3987_syntax"] = None
# A job in a shell's background ignores interrupts, and so would every process that is started here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """The tests of a file go to one worker, since they share slow fixtures; so do the tests of a notebook."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFileOrNotebook(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return re.sub(r"::\w+(\[(?:\w+/)?\d\d)?.*", r"::\1", nodeid)

    return ByFileOrNotebook(config, log)


class Progress:
    """Prints every 30 seconds how many tests have ended and which are running, and each failure at once."""

    def __init__(self, plugins):
        self.plugins, self.begin, self.stop = plugins, time.monotonic(), threading.Event()
        self.running, self.ended, self.total = {}, 0, 0

    def pytest_xdist_node_collection_finished(self, ids):
        self.total = len(ids)

    def pytest_sessionstart(self):
        threading.Thread(target=self.print_regularly, daemon=True).start()

    def pytest_runtest_logstart(self, nodeid):
        self.running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid):
        self.running.pop(nodeid, None)
        self.ended += 1

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.print(f"FAILED {report.nodeid} ({report.when})")

    def pytest_sessionfinish(self):
        self.stop.set()

    def print(self, line):
        self.plugins.getplugin("terminalreporter").write(f"\n{line}\n")

    def print_regularly(self):
        while not self.stop.wait(30):
            now = time.monotonic()
            tests = ", ".join(f"{nodeid} ({now - start:.0f} s)" for nodeid, start in list(self.running.items()))
            self.print(f"{now - self.begin:.0f} s: {self.ended} of {self.total} tests; now {tests}")


def pytest_configure(config):
    if config.getoption("numprocesses", None) and "PYTEST_XDIST_WORKER" not in os.environ:  # it starts the workers
        config.pluginmanager.register(Progress(config.pluginmanager))


def pytest_terminal_summary(terminalreporter):
    """Print the property "table" of tests, because pytest does not show a worker's own output."""
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, text in report.user_properties:
            if name == "table":
                terminalreporter.write_line(f"\n{text}")


@pytest.fixture(scope="session", autouse=True)
def cache_of_this_session(tmp_path_factory):
    """Set DDP_COURSE_CACHE, unless it is set, to a folder of this session for token files, tokenizers and prompts.

    All workers share it: a tokenizer and its token files take ten seconds to compute.
    """
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder  # a worker's is in the session's
    os.environ.setdefault("DDP_COURSE_CACHE", str(folder / "cache_of_this_session"))


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache folder of the test's own."""
    monkeypatch.setenv("DDP_COURSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def warm_server(tmp_path_factory):
    """A process that forks the ranks of launches (startup/warm_server.py), and the variables that name it to them.

    Where forking is not safe: None and no variables.
    """
    if sys.platform != "linux":
        yield None, {}
        return
    address = tmp_path_factory.mktemp("warm") / "server"
    server = psutil.Popen([sys.executable, os.path.join(STARTUP, "warm_server.py"), address])
    try:
        while not address.exists():
            assert server.poll() is None, "the server of warm launches has ended"
            time.sleep(0.05)
        yield server, {"WARM_SERVER": str(address), "WARM_USER_NAMESPACE": os.readlink("/proc/self/ns/user")}
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def warm_launches(warm_server, monkeypatch):
    """The ranks of this test's launches are forked, except those of warm_client.COLD. Returns the server, or None."""
    server, variables = warm_server
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture(scope="module")
def module_launches_warm(warm_server):
    """The same for all tests of a file and their module fixtures."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in warm_server[1].items():
            environment.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def transformers():
    return pytest.importorskip("transformers", reason="models of Hugging Face need: pip install transformers")


@pytest.fixture
def working_folder(tmp_path, monkeypatch):
    """The test runs in tmp_path; its temporary files, and those of its child processes, are made in tmp_path/tmp."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()


@pytest.fixture(autouse=True)
def no_process_left_behind():
    """Fails a test that leaves a process behind, names the process and ends it.

    A process belongs to the test if its environment has the test's tag, also in a session of its own or when its
    parent has ended, or if it was forked from this process without an exec.
    """
    tag = uuid.uuid4().hex
    os.environ[TEST_VARIABLE] = tag
    initial = set(psutil.pids())
    try:
        yield
    finally:
        del os.environ[TEST_VARIABLE]
    left = _left_behind(tag, initial)
    if left:
        psutil.wait_procs(left, timeout=5)  # some are about to end
        left = _left_behind(tag, initial)
    if not left:
        return
    names = []
    for process in left:
        try:
            names.append(f"pid {process.pid}: {' '.join(process.cmdline())}")
            process.kill()
        except psutil.Error:
            continue
    psutil.wait_procs(left, timeout=5)
    sweep(tag, grace=0, variable=TEST_VARIABLE)  # processes that they started in the meantime
    pytest.fail("the test left processes behind:\n" + "\n".join(names), pytrace=False)


def _left_behind(tag, initial):
    """The processes of this test, without those whose pids are in `initial`."""
    left = []
    for pid in set(psutil.pids()) - initial:
        try:
            process = psutil.Process(pid)
            child = os.getpid() in {ancestor.pid for ancestor in process.parents()}
            ours = child or environment_of(process).get(TEST_VARIABLE) == tag
            if not ours or process.status() == psutil.STATUS_ZOMBIE:
                continue
            # A fork of a kept process has the same command line, but is not kept.
            direct = process.ppid() == os.getpid()
            if not (direct and any(name in " ".join(process.cmdline()) for name in KEPT)):
                left.append(process)
        except psutil.Error:
            continue  # it has ended, or this user may not inspect it
    return left
