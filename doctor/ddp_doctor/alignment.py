"""Finds the first collective that one rank started and another did not.

Sequence numbers cannot tell: after a skipped collective of equal size each one pairs with its neighbour, and only the
last is left over. So the ranks' lists are aligned by the source lines that started the collectives.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ddp_doctor import source_lines
from ddp_doctor.history import Collective, History

SAME_SIZE_EVERYWHERE = {"all_reduce", "broadcast", "reduce", "all_gather_single", "all_gather_base"}
AHEAD = 40  # collectives looked at from the first that differs
ALIKE_IN_A_ROW = 3  # equal collectives after which two lists count as aligned again


@dataclass(frozen=True)
class Difference:
    """The first collective in which the ranks differ.

    kind      "missing": `have` started `collective`, `lack` never joined it
              "unlike": they met in one collective with other sizes, types or names; `collective` is that of `have`,
                        `other` that of `lack`
              "order": both start the same ones, in another order; `collective` and `other` as above
    instead   what `lack` started in its place, if anything
    """

    kind: str
    group: str
    have: tuple[int, ...]
    lack: tuple[int, ...]
    collective: Collective
    other: Collective | None = None
    instead: Collective | None = None


def differences(histories: Mapping[int, History], members: Mapping[str, tuple[int, ...]]) -> list[Difference]:
    """The first difference in each process group, the default group's first. `members`: group -> its ranks."""
    groups = sorted(
        {group for history in histories.values() for group in history.collectives}, key=lambda g: (g != "0", g)
    )
    first_differences = []
    for group in groups:
        users = [rank for rank, history in histories.items() if group in history.collectives or group == "0"]
        ranks = [rank for rank in members.get(group, users) if rank in histories]
        lists = _from_a_common_start(
            {rank: histories[rank].collectives.get(group, ()) for rank in ranks},
            all(histories[rank].whole for rank in ranks),
        )
        if len(lists) > 1 and (difference := _first(group, lists)):
            first_differences.append(difference)
    return first_differences


def _from_a_common_start(lists, whole):
    """Cuts histories that have lost entries to the first number that all have; else compares them by position."""
    if whole or not all(lists.values()):
        return lists
    first = max(collectives[0].number for collectives in lists.values())
    return {
        rank: tuple(collective for collective in collectives if collective.number >= first)
        for rank, collectives in lists.items()
    }


def key(collective: Collective, lined: bool = True):
    """Two ranks started the same collective if their keys are equal. `lined`: the source lines count, too."""
    return collective.name, _shape(collective), collective.lines if lined else ()


def _shape(collective: Collective):
    """None where ranks may differ: only the root of a scatter or gather has tensors; all-to-all may send any sizes."""
    return (collective.sizes, collective.dtypes) if collective.name in SAME_SIZE_EVERYWHERE else None


def _first(group, lists) -> Difference | None:
    k, longest = 0, max(map(len, lists.values()))
    # A rank that died in its first second may have left no stacks.
    lined = all(collective.stack for collectives in lists.values() for collective in collectives)
    while k < longest:
        keys = {
            rank: key(collectives[k], lined) if k < len(collectives) else None for rank, collectives in lists.items()
        }
        if len(set(keys.values())) == 1:
            k += 1
            continue
        counts = Counter(keys.values())
        usual = max((candidate for candidate in counts if candidate is not None), key=counts.get)
        if counts[None] > counts[usual]:  # most have ended: then it is one too many, and named all the same
            usual = None
        norm = next(rank for rank in keys if keys[rank] == usual)
        odd = next(rank for rank in keys if keys[rank] != usual)
        last_shared = lists[norm][k - 1] if k else None
        result = _pair(lists[norm][k : k + AHEAD], lists[odd][k : k + AHEAD], last_shared, lined)
        if result is None:
            k += 1
            continue
        kind, side, collective, other, instead = result
        as_norm = tuple(rank for rank in lists if keys[rank] == keys[norm])
        as_odd = tuple(rank for rank in lists if keys[rank] == keys[odd])
        have, lack = (as_norm, as_odd) if side == "norm" else (as_odd, as_norm)
        return Difference(kind, group, have, lack, collective, other, instead)
    return None


def _pair(norm, odd, last_shared, lined):
    """(kind, which list has it, the collective, the other's, what the other started instead) for two lists that part.

    None if the first of both are one collective, started from two branches. last_shared: the last before they part.
    """
    if not norm:
        return "missing", "odd", odd[0], None, None
    if not odd:
        return "missing", "norm", norm[0], None, None
    left, right = [key(collective, lined) for collective in norm], [key(collective, lined) for collective in odd]
    norm_first, odd_first = norm[0], odd[0]
    if _swapped(left, right):
        return "order", "norm", norm_first, odd_first, None
    if norm_first.lines == odd_first.lines or not (norm_first.stack and odd_first.stack):
        return "unlike", "norm", norm_first, odd_first, None
    skipped_by_odd, skipped_by_norm = _goes_on(left, right), _goes_on(right, left)
    if skipped_by_odd == skipped_by_norm:  # the lists alone do not tell
        alike = key(norm_first, lined=False) == key(odd_first, lined=False)
        if not skipped_by_odd and alike and _by_rank(norm_first) == _by_rank(odd_first):
            return None
        skipped_by_norm = _comes_first(odd_first, norm_first, last_shared)
    if skipped_by_norm:
        return "missing", "odd", odd_first, None, norm_first
    return "missing", "norm", norm_first, None, odd_first


def _goes_on(longer, shorter):
    """Do the lists match again once the first few of `longer` are left out? A single equal pair is no match."""
    rests = (longer[left_out : left_out + ALIKE_IN_A_ROW] for left_out in range(1, len(longer)))
    return any(len(rest) > 1 and rest == shorter[: len(rest)] for rest in rests)


def _swapped(left, right):
    """The same few collectives in another order, and then on together."""
    lengths = range(2, min(8, len(left), len(right)) + 1)
    return any(Counter(left[:n]) == Counter(right[:n]) and left[n : n + 1] == right[n : n + 1] for n in lengths)


def _by_rank(collective: Collective) -> bool:
    return source_lines.speaks_of_rank(source_lines.decisive(collective.own))


def _comes_first(left: Collective, right: Collective, last_shared: Collective | None) -> bool:
    """Does the script reach `left` before `right`, so that `left` is the collective that was skipped?

    A collective under a condition on the rank comes first; then one in the loop of `last_shared` that the other rank
    has left (also a loop of a function that both called); then the next line below `last_shared`.
    """
    if _by_rank(left) != _by_rank(right):
        return _by_rank(left)
    if last_shared is None or not (last_shared.own and left.own and right.own):
        return left.lines[::-1] < right.lines[::-1]
    stacks = [each.lines[::-1] for each in (last_shared, left, right)]  # from the outermost line in
    level = next((i for i, each in enumerate(zip(*stacks, strict=False)) if len(set(each)) > 1), None)
    if level is None:
        return len(stacks[1]) < len(stacks[2])
    (file, start), first, second = (stack[level] for stack in stacks)
    begin, end = _innermost_loop(file, start)
    in_the_call = [_stays_in_the_call(stack, stacks[0], level) for stack in stacks[1:]]
    in_the_loop = [location[0] == file and begin <= location[1] <= end for location in (first, second)]
    for inside in (in_the_call, in_the_loop):
        if inside[0] != inside[1]:
            return inside[0]
    return (first[1] <= start, first[1]) < (second[1] <= start, second[1])


def _innermost_loop(file: str, line: int) -> tuple[int, int]:
    return next(iter(source_lines.loops_around(file, line)), (0, -1))


def _stays_in_the_call(stack, earlier, level):
    """Do two collectives come from one call at `level` of their stacks, in a loop of what was called?"""
    if stack[level] != earlier[level]:
        return False
    for (file, line), now in zip(earlier[level + 1 :], stack[level + 1 :], strict=False):
        begin, end = _innermost_loop(file, line)
        if file == now[0] and begin <= now[1] <= end:
            return True
        if now != (file, line):
            return False
    return False
