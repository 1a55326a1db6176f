"""The first collective in which ranks differ, and the condition in the source that it is under."""

import pytest
from ddp_doctor.alignment import differences
from ddp_doctor.history import Collective, Frame, History
from ddp_doctor.source_lines import conditions, deciding_condition, text_at

pytestmark = pytest.mark.smoke

SCRIPT = """\
def evaluate(rank, x):
    if rank != 0:
        return
    all_reduce(x)


for batch in loader:
    all_reduce(batch)
    if rank == 0 and step % 2:
        all_reduce(
            loss
        )
    else:
        print("no")
    barrier()
is_main and barrier()
if __name__ == "__main__":
    barrier()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def history(script, text, first=1):
    """ "8 8 10 15b 8*": the lines of collectives in SCRIPT, all-reduces but for b, a barrier; *: another size.

    first: the number of the first one.
    """
    collectives = []
    for number, word in enumerate(text.split(), first):
        name = "barrier" if word.endswith("b") else "all_reduce"
        sizes = () if name == "barrier" else ((9,) if word.endswith("*") else (4,),)
        frames = (Frame(script, int(word.strip("b*")), "<module>"),)
        collectives.append(Collective(number, "0", name, sizes, ("Float",) if sizes else (), frames))
    return History({"0": tuple(collectives)}, {}, collectives[-1] if collectives else None, first == 1)


@pytest.mark.parametrize(
    ("ranks", "kind", "have", "lack", "number", "line"),
    [
        (["8 8 8", "8 8"], "missing", (0,), (1,), 3, 8),  # one stopped
        (["8 8 8 8", "8 8 18b"], "missing", (0,), (1,), 3, 8),  # one left the loop
        (["8 10 8 10 8 8", "8 8 8 8"], "missing", (0,), (1,), 2, 10),  # under `if rank == 0`, of equal size
        (["8 8 10", "8 8 8"], "missing", (0,), (1,), 3, 10),  # ... where nothing follows that could tell
        (["8 8 8 8 8", "8 4 8 8 8 8"], "missing", (1,), (0,), 2, 4),  # one too many on rank 1
        (["8 8 8 8", "8 8 18b 8"], "missing", (0,), (1,), 3, 8),  # one left the loop, and is in it again, or in another
        (["8 8 8", "8 8 8*"], "unlike", (0,), (1,), 3, 8),
        (["8 8 8", "8 8 8*", "8 8 8"], "unlike", (0, 2), (1,), 3, 8),
        (["8 15b 8 15b 8", "8 8 15b 8"], "missing", (0,), (1,), 2, 15),  # skipped what follows in the loop
        (["8 9 15 8 9 15 8 9 15 8", "8 9 15 8 8 9 15 8"], "missing", (0,), (1,), 5, 9),  # ... all of equal size
        (["8 4 10 8", "8 10 4 8"], "order", (0,), (1,), 2, 4),
        (["8 8 8 8", "8 8 8", "8 8 8 8", "8 8 8 8"], "missing", (0, 2, 3), (1,), 4, 8),
        (["8 8 10 8", "8 8 8", "8 8 8", "8 8 8"], "missing", (0,), (1, 2, 3), 3, 10),
    ],
)
def test_the_first_difference(script, ranks, kind, have, lack, number, line):
    (difference,) = differences({rank: history(script, text) for rank, text in enumerate(ranks)}, {})
    assert (difference.kind, difference.have, difference.lack) == (kind, have, lack)
    assert (difference.collective.number, difference.collective.own[0].line) == (number, line)


IN_A_FUNCTION = """\
def train(batches):
    for batch in batches:
        all_reduce(batch)


for _ in range(2):
    train(batches)
    barrier()
train(batches)
barrier()
"""


@pytest.mark.parametrize(("call", "barrier"), [(7, 8), (9, 10)])
def test_a_rank_that_has_left_the_loop_of_a_function_missed_what_the_loop_still_does(tmp_path, call, barrier):
    script = tmp_path / "train.py"
    script.write_text(IN_A_FUNCTION)

    def history_of(batches):
        inside = Frame(str(script), 3, "train"), Frame(str(script), call, "<module>")
        frames = [inside] * batches + [(Frame(str(script), barrier, "<module>"),)]
        collectives = (
            Collective(number, "0", "all_reduce" if len(own) == 2 else "barrier", ((4,),), ("Float",), own)
            for number, own in enumerate(frames, 1)
        )
        return History({"0": tuple(collectives)}, {}, None, True)

    histories = {0: history_of(5), 1: history_of(3)}
    histories[0] = History({"0": histories[0].collectives["0"][:4]}, {}, None, True)  # it waits in its fourth
    (difference,) = differences(histories, {})
    assert (difference.kind, difference.lack, difference.collective.own[0].line) == ("missing", (1,), 3)


@pytest.mark.parametrize(
    "ranks", [["8 8", "8 8"], ["", ""], ["8 4 8 4 8", "8 10 8 10 8"], ["8 8 4", "8 8 10"], ["8 4 4", "8 10 10"]]
)
def test_the_same_collectives_from_other_lines_are_no_difference(script, ranks):
    assert not differences({rank: history(script, text) for rank, text in enumerate(ranks)}, {})


def test_lists_that_lost_their_beginning_are_compared_by_number(script):
    histories = {0: history(script, "8 8 8 8", first=7), 1: history(script, "8 8 8", first=8)}
    assert not differences(histories, {})
    histories[1] = history(script, "8 8", first=8)
    (difference,) = differences(histories, {})
    assert (difference.lack, difference.collective.number) == ((1,), 10)


@pytest.mark.parametrize(
    ("line", "condition"),
    [
        (4, "after `if rank != 0: return` at line 2"),
        (8, "in the loop `for batch in loader`"),
        (11, "under `if rank == 0 and step % 2`"),
        (14, "under the `else` of `if rank == 0 and step % 2`"),
        (15, "in the loop `for batch in loader`"),
        (16, "under `is_main and barrier()`"),
        (18, ""),
        (99, ""),
    ],
)
def test_the_condition_of_a_line(script, line, condition):
    assert deciding_condition((Frame(script, line, "f"),)) == condition


def test_text_and_conditions_of_a_file_that_cannot_be_read(script):
    assert text_at(script, 11) == "all_reduce("
    assert text_at("/no/such.py", 3) == "" and conditions("/no/such.py", 3) == []


def test_the_condition_may_be_around_the_call_of_the_function(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("def save():\n    barrier()\nfor step in range(3):\n    if loss < best:\n        save()\n")
    frames = (Frame(str(script), 2, "save"), Frame(str(script), 5, "<module>"))
    assert deciding_condition(frames) == "under `if loss < best`"


@pytest.mark.parametrize(
    ("body", "leaving"),
    [
        ("return", "return"),
        ("log()\n        return", "return"),
        ("if way == 'exit':\n            sys.exit(0)\n        raise ValueError", "..."),
        ("try:\n            return 1\n        finally:\n            log()\n        raise ValueError", "..."),
    ],
)
def test_a_way_to_leave_is_named_unless_there_are_several(tmp_path, body, leaving):
    script = tmp_path / "script.py"
    script.write_text(f"def train(rank):\n    if rank == 1:\n        {body}\n    all_reduce()\n")
    line = len(script.read_text().splitlines())
    assert deciding_condition((Frame(str(script), line, "train"),)) == f"after `if rank == 1: {leaving}` at line 2"
