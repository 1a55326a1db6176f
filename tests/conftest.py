"""For every test: one thread per process, a cache of this session's own, and no process left behind."""

import os
import re
import signal
import sys
import uuid
from pathlib import Path

import psutil
import pytest
from ddp_doctor.launch.supervise import environment_of, sweep

TEST_VARIABLE = "DDP_COURSE_TEST"
SPREAD_OUT = ("test_notebooks.py", "test_exercises.py")  # each test goes to the next free worker, not each file
LONGEST_FILES = (
    *SPREAD_OUT,
    "test_wrong_answers.py",  # many minutes each
    "test_faults.py",
    "test_launch.py",
    "test_check.py",
    "test_ladder.py",
    "test_process_group.py",
    "test_speedrun.py",
    "test_sync.py",
    "test_resume.py",
    "test_reward.py",
    "test_fuzz.py",
    "test_cluster.py",
    "test_slurm.py",  # a minute
)
# A test module that imports one of these starts ranks, kernels or trainers, minutes in all: not for make test-fast.
STARTS_RANKS = ("torchrun", "warm", "run_notebook", "run_answers", "metrics", "examine", "Chaos")
# Left to make test-rest, more than half of the computing: deep dives, exercises and the answers to them, clusters, the
# speedrun, what lies beyond DDP. CI runs both parts at once.
REST = re.compile(
    r"test_notebook_runs\[notebooks/(\d\d[a-z]|1[5-9]|2\d)|test_exercise_runs|"
    r"test_(wrong_answers|parallel|diloco|experts|speedrun|cluster|slurm|templates)\.py"
)
# What a library starts once and keeps as long as this process lives: not the test's doing.
KEPT_BY_LIBRARIES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "compile_worker")

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything imports torch
STARTUP = str(Path(__file__).with_name("startup"))
if STARTUP not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [STARTUP, os.environ.get("PYTHONPATH")]))
# jsonschema would take it for checks of addresses, which nbformat does not ask for, and it computes for a second.
sys.modules["rfc3987_syntax"] = None
# A job in a shell's background ignores interrupts, and so would everything that is started here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Tests that share what took long to make stay on one worker; each of the others would make it again.

    Not by the mark xdist_group: xdist 3.8 writes it where pytest 9.2 no longer looks, and then every test goes its own
    way, without a word (https://github.com/pytest-dev/pytest-xdist/issues/1386).
    """
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return together(nodeid)

    return Together(config, log)


def together(nodeid):
    """A name for the tests that stay together: those of a file, or of one notebook's answers, or `nodeid` alone."""
    path, _, test = nodeid.partition("::")
    name = path.rpartition("/")[2]
    if name in SPREAD_OUT:
        return nodeid
    if name == "test_wrong_answers.py":  # the answers of a notebook are graded at once
        return f"answers {test.partition('[')[2][:2]}"
    return path


def pytest_collection_modifyitems(items):
    """The longest files first: begun last, one of them would keep one worker busy and leave the others idle.

    And the marks: `ranks`, by what a test's module imports, and `rest`, by a test's name.
    """
    order = {name: number for number, name in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))
    for item in items:
        if item.path.name in order or any(hasattr(item.module, name) for name in STARTS_RANKS):
            item.add_marker("ranks")
        if REST.search(item.nodeid):
            item.add_marker("rest")


@pytest.fixture(scope="session", autouse=True)
def cache_of_this_session(tmp_path_factory):
    """Token files and the like go to a folder of this session, unless DDP_COURSE_CACHE is already set.

    It is one for all workers: a tokenizer and its token files take ten seconds of computing, which each would spend.
    """
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder  # a worker's is in the session's
    os.environ.setdefault("DDP_COURSE_CACHE", str(folder / "cache_of_this_session"))


@pytest.fixture(autouse=True)
def no_process_left_behind():
    """Fails a test that leaves a process behind, by name, after having ended it.

    Processes are recognised by an environment variable, which reaches those in sessions of their own, too, and
    whose parents are gone; processes that were forked without an exec, as children of this one.
    """
    tag = uuid.uuid4().hex
    os.environ[TEST_VARIABLE] = tag
    before = set(psutil.pids())
    try:
        yield
    finally:
        del os.environ[TEST_VARIABLE]
    left = _left_behind(tag, before)
    if left:
        psutil.wait_procs(left, timeout=5)  # some are about to end
        left = _left_behind(tag, before)
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
    sweep(tag, grace=0, variable=TEST_VARIABLE)  # what they started in the meantime
    pytest.fail("the test left processes behind:\n" + "\n".join(names), pytrace=False)


def _left_behind(tag, before):
    """The processes of this test among those that are new since `before`, a set of pids."""
    left = []
    for pid in set(psutil.pids()) - before:
        try:
            process = psutil.Process(pid)
            child = os.getpid() in {ancestor.pid for ancestor in process.parents()}
            ours = child or environment_of(process).get(TEST_VARIABLE) == tag
            if not ours or process.status() == psutil.STATUS_ZOMBIE:
                continue
            # What one of them has forked has the same command line, and is not kept.
            direct = process.ppid() == os.getpid()
            if not (direct and any(name in " ".join(process.cmdline()) for name in KEPT_BY_LIBRARIES)):
                left.append(process)
        except psutil.Error:
            continue  # ended meanwhile, or not ours to look at
    return left
