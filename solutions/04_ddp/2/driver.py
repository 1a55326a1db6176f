"""Inside a rank, for 04.2: right and wrong versions of run for the learner's detector; a crash in the learner's run."""

import gc
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

MESSAGE = "sample 3: token 70000 is outside the vocabulary of 65536"
DETECTOR_TIMEOUT = 1.5  # seconds after which a group of the detector's runs times out; ranks may start 0.5 s apart
LONG_TIMEOUT = 4.0  # the same for the version whose clean-up takes long
TIMEOUT = 3.0  # the same for the learner's run; half of it, its limit, is much more than ranks wait for a core
LONGEST_WAIT = 8.0  # seconds that ranks wait for each other between two calls


class BrokenSample(Exception):
    """An exception that is not built in: an answer that lists built-in exceptions misses it."""


class UncaughtExit(Exception):
    """The learner's detector has let the SystemExit of a version of run out."""


stores = []  # that of the harness; then, on rank 0, that of each call, which would close if it were not kept here
calls = 0  # of drive


def drive(function, what):
    """The result of hides_a_crash for the version called `what`; or the report on run if the rank `what` crashes.

    what: None if no rank crashes. Each call gets a process group of its own to start, as a script of torchrun would.
    """
    prepare()
    try:
        if what not in VERSIONS:
            return observe(function, what)
        version, timeout, _ = VERSIONS[what]
        return function(version, timeout)
    except SystemExit as error:  # the harness would take it for that of a rank that ends itself
        text = f"the SystemExit of this version of run: {error}"
        raise UncaughtExit(text).with_traceback(error.__traceback__) from None
    finally:
        leave()
        gc.collect()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # the harness expects one


def prepare():
    """Leave the harness's group, and set MASTER_PORT for the next one: that of a new store on rank 0."""
    global calls
    calls += 1
    if not stores:
        stores.append(dist.distributed_c10d._get_default_store())
    wait_for_all("begun")
    leave()
    if os.environ["RANK"] == "0":
        stores.append(dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
        stores[0].set(f"port {calls}", str(stores[-1].port))
    os.environ["MASTER_PORT"] = stores[0].get(f"port {calls}").decode()


def wait_for_all(event):
    """Wait until all ranks have called this for the same event of this call of drive."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    stores[0].set(f"{event} {calls} {rank}", "")
    stores[0].wait([f"{event} {calls} {peer}" for peer in range(world)], timedelta(seconds=LONGEST_WAIT))


def group_timeout():
    """The seconds after which a collective of this process's group times out."""
    group = dist.distributed_c10d._get_default_group()
    return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()


def leave():
    """Destroy the process group, if there is one: as at the end of a process, its connections close."""
    if dist.is_initialized():
        dist.destroy_process_group()


# ---- versions of run(train, timeout_seconds) ----------------------------------------------------------------------


def join(timeout_seconds):
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_seconds))
    wait_for_all("joined")  # otherwise a rank could crash while another is still connecting to it
    return dist.get_rank()


def do_nothing():
    pass


def pause(seconds):
    return lambda: time.sleep(seconds)


def raise_it(error):
    raise error


def end_process(error):
    sys.exit(str(error))


def raise_it_late(error):
    time.sleep(0.6 * DETECTOR_TIMEOUT)
    raise error


def version(before=do_nothing, after=do_nothing, on_error=raise_it, in_finally=do_nothing):
    """A version of run; `after` is called if train has returned, on_error with the exception if train has raised."""

    def run(train, timeout_seconds):
        rank = join(timeout_seconds)
        before()
        try:
            train(rank)
            after()
        except Exception as error:
            on_error(error)
        finally:
            in_finally()
            dist.destroy_process_group()

    return run


VERSIONS = {  # scenario: the version, the timeout of its group, whether it hides a crash
    "a barrier at the end of a good run": (version(after=dist.barrier), DETECTOR_TIMEOUT, False),
    "a barrier in `finally`": (version(in_finally=dist.barrier), DETECTOR_TIMEOUT, True),
    # 1 s is more than half of the timeout.
    "no barrier, and 1 s before training begins": (version(before=pause(1.0)), DETECTOR_TIMEOUT, False),
    "the error printed and dropped": (version(on_error=print), DETECTOR_TIMEOUT, True),
    "sys.exit with its text in its place": (version(on_error=end_process), DETECTOR_TIMEOUT, True),
    "no barrier, a clean-up of 1.2 s and a timeout of 4 s": (version(in_finally=pause(1.2)), LONG_TIMEOUT, False),
    "the error held back for six tenths of the timeout": (version(on_error=raise_it_late), DETECTOR_TIMEOUT, True),
}


# ---- what the learner's run does ----------------------------------------------------------------------------------


def observe(run, crashing_rank):
    """Call `run` with a train that raises on one rank while the others are in a collective. Returns this rank's report.

    seconds: from the crash until run has ended. started: the arguments of the calls of train.
    """
    crash = BrokenSample(MESSAGE) if crashing_rank == 0 else ValueError(MESSAGE)
    report = {"started": [], "steps": 0, "crash": type(crash).__name__}

    def train(rank):
        report["started"].append(rank)
        report["timeout"] = group_timeout()
        for step in range(5):
            if rank == crashing_rank and step == 2:
                stores[0].set(f"crashed {calls}", str(time.monotonic()))
                raise crash
            dist.all_reduce(torch.ones(1))
            report["steps"] += 1

    raised = None
    try:
        run(train, TIMEOUT)
    except NotImplementedError:
        raise  # a stub
    except BaseException as error:
        raised = [type(error).__name__, str(error)[:200]]
        report["same_exception"] = error is crash
    ended = time.monotonic()
    report |= {"raised": raised, "group_is_left": not dist.is_initialized()}
    leave()
    if crashing_rank is not None and stores[0].check([f"crashed {calls}"]):
        report["seconds"] = ended - float(stores[0].get(f"crashed {calls}"))
    return report
