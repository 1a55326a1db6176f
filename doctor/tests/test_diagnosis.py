"""The verdict on jobs given as plain data, without starting any: its kind, the ranks it blames, its sentence."""

import threading

import pytest
from ddp_doctor import words
from ddp_doctor.diagnosis import diagnose, long_wait
from ddp_doctor.explain.messages import BY_NAME
from ddp_doctor.history import Collective, Frame, History
from ddp_doctor.job import Error, Job, Rank
from ddp_doctor.page import as_json, page

pytestmark = pytest.mark.smoke

SCRIPT = "/somewhere/train.py"
TORCH = "/x/site-packages/torch/distributed/distributed_c10d.py"
BACKWARD = (Frame("/x/site-packages/torch/autograd/__init__.py", 395, "backward"), Frame(SCRIPT, 12, "train"))
ALL_REDUCED = History(newest=Collective(2, "0", "all_reduce", ((4,),), ("Float",), (Frame(SCRIPT, 12, "train"),)))


def stack(call=None, line=12):
    """A stack in the function `call` of torch.distributed, called from `line`; without `call`, in that line itself."""
    return (*((Frame(TORCH, 1, call),) if call else ()), Frame(SCRIPT, line, "train"))


def rank(state="waiting", call="all_reduce", line=12, **facts):
    """The arguments of a Rank."""
    return {"state": state, "stack": stack(call, line), **facts}


def error(text, symptom=False, call="all_reduce"):
    return Error(text, 1.0, symptom, stack(call, 13))


LOST = error("RuntimeError: Connection closed by peer", symptom=True)
MODELS = "DDP expects same model across all ranks, but Rank {} has {} params, while rank {} has inconsistent {} params."
UNUSED = "Expected to have finished reduction in the prior iteration ... which did not receive grad for rank 1: 2 3"
SIZE = (
    "terminate called after ... op.preamble.length <= op.nbytes. 8 vs 4. Received data size doesn't match expected size"
)


def victim(**facts):
    """A rank that ended because its peer was gone."""
    return rank("ended", exit_code=1, error=LOST, **facts)


def dead(code, **facts):
    return rank("ended", exit_code=code, call=None, line=20, **facts)


def raised(text, *more):
    return dead(1, error=error(text, *more))


IN_BARRIER, IN_BACKWARD = rank(call="barrier", line=14), {"state": "waiting", "stack": BACKWARD}
EXITED = dead(3, exit_call=("sys.exit(3)", stack(None, 21)))
KILLED_LATER = dead(-9, recorded=True, history=ALL_REDUCED)
ABORTED_AT_EXIT = dead(-6, last_lines=["terminate called without an active exception"])
OTHER_MODELS = [raised(MODELS.format(0, 4, 1, 6)), raised(MODELS.format(1, 6, 0, 4))]
ALONE_IN_INIT = raised("wait timeout after 3 ms", True, "init_process_group")
ALONE_IN_BARRIER = raised("Ranks 1, 2 failed to pass monitoredBarrier in 2000 ms", True)


@pytest.mark.parametrize(
    ("ended", "ranks", "kind", "blamed", "says"),
    [
        ("hang", [rank(), rank()], "all wait", (0, 1), "every rank waits in all-reduce at"),
        ("hang", [rank(), IN_BARRIER], "all wait", (0, 1), "rank 1 in barrier at"),
        ("hang", [rank(), rank("stopped")], "stopped", (1,), "rank 1 is stopped"),
        ("hang", [rank(), rank(call=None, line=20)], "missing", (1,), "never answered all-reduce"),
        ("hang", [rank(), rank(error=error("ValueError: x"))], "error", (1,), "raised ValueError: x"),
        ("hang", [rank(call=None), rank(call=None)], "idle", (0, 1), "none works"),
        ("hang", [rank(call="init_process_group"), rank(call=None)], "init", (1,), "never called init_process_group"),
        ("now", [rank(), rank("computing", call=None)], "running", (), "at work"),
        ("hang", [rank(), rank(call="get_rank", line=20)], "missing", (1,), "never answered all-reduce"),
        ("now", [IN_BACKWARD, IN_BARRIER], "all wait", (0, 1), "rank 0 in backward at"),
        ("now", [rank("computing", call=None)] * 2, "running", (), "at work"),
        ("well", [dead(0), dead(0)], "well", (), "ended well"),
        ("failed", [dead(75), dead(75)], "stopped", (), "asked to stop"),
        ("failed", [victim(), raised("ValueError: x")], "error", (1,), "rank 0 only lost contact"),
        ("failed", [raised("OSError: x")] * 2, "error", (0, 1), "every rank raised OSError: x"),
        ("failed", [victim(), dead(0)], "left", (1,), "exit code 0"),
        ("failed", [victim(), EXITED], "left", (1,), "left with sys.exit(3)"),
        ("failed", [victim(), dead(-9)], "killed", (1,), "SIGKILL"),
        # the stack was recorded before the group, or the first collective: it is out of date
        ("failed", [victim(), dead(-9, recorded=True)], "killed", (1,), "left no trace of where it stood"),
        ("failed", [victim(), KILLED_LATER], "killed", (1,), "last seen after all-reduce 2"),
        ("failed", [victim(), dead(-11)], "killed", (1,), "SIGSEGV"),
        ("failed", [dead(0), dead(-6)], "aborted", (1,), "SIGABRT"),
        ("failed", [dead(0), ABORTED_AT_EXIT], "at exit", (1,), "the work was done"),
        ("failed", OTHER_MODELS, "models", (1,), "rank 0 has 4 parameters, rank 1 has 6"),
        ("failed", [victim(), raised(UNUSED)], "unused", (1,), "rank 1 left out parameters 2 3"),
        ("failed", [raised("port: 29777, ... address already in use"), dead(-15)], "port", (0,), "29777"),
        ("failed", [dead(-6, error=error(SIZE)), victim()], "unlike", (0,), "8 bytes came, 4 were expected"),
        ("failed", [ALONE_IN_INIT, dead(-15)], "init", (1,), "never came to init_process_group"),
        ("failed", [ALONE_IN_BARRIER, dead(-15)], "missing", (1, 2), "never came to monitored_barrier"),
        ("failed", [dead(None), dead(None)], "launcher", (), "torchrun failed before"),
    ],
)
def test_verdict(ended, ranks, kind, blamed, says):
    job = Job({number: Rank(number, 100 + number, **facts) for number, facts in enumerate(ranks)}, len(ranks), ended)
    verdict = diagnose(job)
    assert (verdict.kind, verdict.ranks) == (kind, blamed), verdict.sentence
    assert says in verdict.sentence
    assert page(job, verdict).startswith(f"VERDICT: {verdict.sentence}.")
    assert as_json(job, verdict)["verdict"]["kind"] == kind


def test_a_known_error_gets_the_advice_that_explain_gives():
    text = "RuntimeError: Expected to mark a variable ready only once."
    verdict = diagnose(Job({number: Rank(number, **raised(text)) for number in range(2)}, 2, "failed"))
    assert verdict.kind == "ready twice" and verdict.cure == BY_NAME["ready twice"].first_step


def test_ranks_with_the_same_number_or_another_world_size():
    for variables, says in (
        ({"rank": "0", "world_size": "2"}, "rank=0 on 2 of them"),
        ({"rank": "-1", "world_size": "4"}, "world_size=4, while 2 ranks"),
    ):
        variables = {f"init_process_group.{name}": text for name, text in variables.items()}
        waits = {number: Rank(number, **rank(call="init_process_group", variables=variables)) for number in range(2)}
        verdict = diagnose(Job(waits, 2, "hang"))
        assert verdict.kind == "init" and verdict.ranks == (0, 1) and says in verdict.sentence


def test_a_rank_that_computes_for_long_is_named_but_not_accused():
    text = long_wait(Rank(0, **rank()), Rank(1, **rank("computing", call=None, line=20)), 31.4)
    assert "rank 0 has waited 31 s" in text and "rank 1 is at work in train() at /somewhere/train.py:20" in text


def test_a_line_of_a_library_is_named_without_the_folder_of_its_installation():
    linear = Frame("/x/site-packages/torch/nn/modules/linear.py", 134, "forward")
    assert words.location(linear) == "torch/nn/modules/linear.py:134"
    assert words.location(Frame(threading.__file__, 629, "wait")) == "threading.py:629"
    assert words.location(Frame("/somewhere/else/train.py", 4, "main")) == "/somewhere/else/train.py:4"


def test_the_call_of_a_rank_that_ended_with_an_error_is_in_the_stack_of_the_error():
    last_stack = stack(None, 9)  # recorded before it called any collective
    functions = ("broadcast", "wrapper", "broadcast_object_list", "wrapper")
    frames = (*(Frame(TORCH, 1, function) for function in functions), *stack(line=13))
    raised = Rank(1, state="ended", exit_code=1, stack=last_stack, error=Error("Connection closed", 1.0, True, frames))
    assert raised.call() == "broadcast_object_list"
    assert Rank(1, state="ended", exit_code=-15, stack=last_stack).call() is None
    assert Rank(1, state="waiting", stack=stack("barrier", 14), error=raised.error).call() == "barrier"


@pytest.mark.parametrize(
    ("line", "uses_gpu", "works"),
    [("loss.item()", True, False), ("loss.item()", False, True), ("loss = model(windows)", True, True)],
)
def test_a_busy_wait_for_the_gpu_is_no_work_while_a_collective_is_pending(tmp_path, line, uses_gpu, works):
    script = tmp_path / "train.py"
    script.write_text(f"{line}\n")
    started = Collective(2, "0", "all_reduce", ((4,),), ("Float",), ())
    facts = {"stack": (Frame(str(script), 1, "train"),), "progress": {"0": (2, 1)}, "uses_gpu": uses_gpu}
    computing = Rank(0, state="computing", history=History({"0": [started]}), **facts)
    assert computing.works() is works
    assert Rank(0, state="computing", **facts).works()  # nothing is pending


def test_a_rank_that_comes_after_the_timeout_is_late_however_slowly_the_error_is_noted():
    barrier = [Collective(4, "0", "barrier", (), (), (Frame(SCRIPT, 9, "f"),), time=int(t * 1e9)) for t in (100, 104.5)]
    timeout = Error("RuntimeError: Timed out waiting 4000ms for recv operation to complete", 112.0, True)
    first = Rank(0, **dead(1, error=timeout, history=History(newest=barrier[0])))
    late = Rank(1, **dead(-15, history=History(newest=barrier[1])))
    verdict = diagnose(Job({0: first, 1: late}, 2, "failed", 1))
    assert (verdict.kind, verdict.ranks) == ("timeout", (1,)) and "rank 1 came to it 4 s later" in verdict.sentence
