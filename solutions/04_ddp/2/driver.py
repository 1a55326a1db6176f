"""Inside a rank, for 04.2: good and bad ways to leave for the learner's detector; crashes for the learner's run."""

import gc
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

TEXT = "sample 3: token 70000 is outside the vocabulary of 65536"
DETECTOR_TIMEOUT = 1.5  # seconds after which a group of the detector's runs gives up; ranks may start 0.5 s apart
LONG_TIMEOUT = 4.0  # the same for the version whose clean-up takes long
TIMEOUT = 1.2  # the same for the learner's run
LONGEST = 8.0  # seconds that ranks wait for each other between two calls


class BrokenSample(Exception):
    """An error of the learner's own: no list of those that Python has names it."""


shared = []  # the store of the harness
calls = 0


def drive(function, what):
    """`function` is hides_a_crash, with what = a name in VERSIONS, or run, with what = the rank that crashes, or None.

    Each call gets a process group of its own to start, as a script of torchrun would.
    """
    prepare()
    try:
        if what not in VERSIONS:
            return observe(function, what)
        version, _ = VERSIONS[what]
        return function(version, LONG_TIMEOUT if version is slow_clean_up else DETECTOR_TIMEOUT)
    finally:
        leave()
        gc.collect()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # the harness expects one


def prepare():
    """Leave the harness's group, and let every rank know where the next one will meet."""
    global calls
    calls += 1
    if not shared:
        shared.append(dist.distributed_c10d._get_default_store())
    wait_for_all("here")
    leave()
    if os.environ["RANK"] == "0":
        shared.append(dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))  # kept, or it would go
        shared[0].set(f"port {calls}", str(shared[-1].port))
    os.environ["MASTER_PORT"] = shared[0].get(f"port {calls}").decode()


def wait_for_all(where):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    shared[0].set(f"{where} {calls} {rank}", "")
    shared[0].wait([f"{where} {calls} {other}" for other in range(world)], timedelta(seconds=LONGEST))


def group_timeout():
    """The seconds after which a collective of this process's group gives up."""
    group = dist.distributed_c10d._get_default_group()
    return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()


def leave():
    """As the end of a process would: the connections go."""
    if dist.is_initialized():
        dist.destroy_process_group()


# ---- versions of run(train, timeout_seconds) ----------------------------------------------------------------------


def join(timeout_seconds):
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_seconds))
    wait_for_all("joined")  # a rank that crashed at once would meet another that is still connecting
    return dist.get_rank()


def barrier_at_the_end_of_a_good_run(train, timeout_seconds):
    rank = join(timeout_seconds)
    try:
        train(rank)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def slow_to_begin(train, timeout_seconds):
    rank = join(timeout_seconds)
    time.sleep(1.0)  # more than half of the timeout
    try:
        train(rank)
    finally:
        dist.destroy_process_group()


def barrier_in_finally(train, timeout_seconds):
    rank = join(timeout_seconds)
    try:
        train(rank)
    finally:
        dist.barrier()
        dist.destroy_process_group()


def error_printed_and_dropped(train, timeout_seconds):
    rank = join(timeout_seconds)
    try:
        train(rank)
    except Exception as error:
        print(error)
    dist.destroy_process_group()


def another_error_in_its_place(train, timeout_seconds):
    rank = join(timeout_seconds)
    try:
        train(rank)
    except Exception:
        raise RuntimeError("the training has failed") from None
    finally:
        dist.destroy_process_group()


def slow_clean_up(train, timeout_seconds):
    rank = join(timeout_seconds)
    try:
        train(rank)
    finally:
        time.sleep(0.3 * LONG_TIMEOUT)
        dist.destroy_process_group()


def six_tenths_of_the_timeout(train, timeout_seconds):
    rank = join(timeout_seconds)
    try:
        train(rank)
    except Exception:
        time.sleep(0.6 * timeout_seconds)
        raise
    finally:
        dist.destroy_process_group()


VERSIONS = {  # scenario: the version, whether it hides a crash
    "a barrier at the end of a good run": (barrier_at_the_end_of_a_good_run, False),
    "a barrier in `finally`": (barrier_in_finally, True),
    "no barrier, and 1 s before training begins": (slow_to_begin, False),
    "the error printed and dropped": (error_printed_and_dropped, True),
    "another error raised in its place": (another_error_in_its_place, True),
    "no barrier, a clean-up of 1.2 s and a timeout of 4 s": (slow_clean_up, False),
    "the error held back for six tenths of the timeout": (six_tenths_of_the_timeout, True),
}


# ---- what the learner's run does ----------------------------------------------------------------------------------


def observe(run, crashing):
    """Let the rank `crashing` raise while the others are in a collective. Returns the outcome of run, and when."""
    crash = BrokenSample(TEXT) if crashing == 0 else ValueError(TEXT)
    report = {"started": [], "steps": 0, "crash": type(crash).__name__}

    def train(rank):
        report["started"].append(rank)
        report["timeout"] = group_timeout()
        for step in range(5):
            if rank == crashing and step == 2:
                shared[0].set(f"crashed {calls}", str(time.monotonic()))
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
        report["itself"] = error is crash
    ended = time.monotonic()
    report |= {"raised": raised, "group_is_left": not dist.is_initialized()}
    leave()
    if crashing is not None and shared[0].check([f"crashed {calls}"]):
        report["seconds"] = ended - float(shared[0].get(f"crashed {calls}"))
    return report
