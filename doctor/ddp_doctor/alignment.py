"""Where the ranks' lists of collectives part: the first that one rank started and another did not.

The numbers alone name the last collective: after a skipped one of equal size, everything pairs with its neighbour and
only the end is left over. So the lists are aligned by the lines that started them.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ddp_doctor import source_lines
from ddp_doctor.history import Collective, History

SAME_SIZE_EVERYWHERE = {"all_reduce", "broadcast", "reduce", "all_gather_single", "all_gather_base"}
AHEAD = 40  # collectives looked at from the first that differs
TOGETHER = 3  # so many alike in a row say that two lists go on together


@dataclass(frozen=True)
class Difference:
    """What the ranks do not do alike, at the first place.

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
    groups = sorted({group for one in histories.values() for group in one.collectives}, key=lambda g: (g != "0", g))
    found = []
    for group in groups:
        seen = [rank for rank, one in histories.items() if group in one.collectives or group == "0"]
        ranks = [rank for rank in members.get(group, seen) if rank in histories]
        lists = _from_a_common_start(
            {rank: histories[rank].collectives.get(group, ()) for rank in ranks},
            all(histories[rank].whole for rank in ranks),
        )
        if len(lists) > 1 and (one := _first(group, lists)):
            found.append(one)
    return found


def _from_a_common_start(lists, whole):
    """By position, where nothing is lost: gloo also counts messages from rank to rank. Else from a common number."""
    if whole or not all(lists.values()):
        return lists
    first = max(ones[0].number for ones in lists.values())
    return {rank: tuple(one for one in ones if one.number >= first) for rank, ones in lists.items()}


def key(one: Collective, lined: bool = True):
    """What two ranks must agree in to have started the same collective. `lined`: the lines count, too."""
    return one.name, _shape(one), one.lines if lined else ()


def _shape(one: Collective):
    """Of a scatter or a gather only the root's tensors are known, and an all-to-all may send what it likes."""
    return (one.sizes, one.dtypes) if one.name in SAME_SIZE_EVERYWHERE else None


def _first(group, lists) -> Difference | None:
    k, longest = 0, max(map(len, lists.values()))
    # A rank that died in its first second may have left no stacks.
    lined = all(one.stack for ones in lists.values() for one in ones)
    while k < longest:
        keys = {rank: key(ones[k], lined) if k < len(ones) else None for rank, ones in lists.items()}
        if len(set(keys.values())) == 1:
            k += 1
            continue
        counts = Counter(keys.values())
        usual = max((one for one in counts if one is not None), key=counts.get)
        if counts[None] > counts[usual]:  # most have ended: then it is one too many, and named all the same
            usual = None
        norm = next(rank for rank in keys if keys[rank] == usual)
        odd = next(rank for rank in keys if keys[rank] != usual)
        before = lists[norm][k - 1] if k else None
        result = _pair(lists[norm][k : k + AHEAD], lists[odd][k : k + AHEAD], before, lined)
        if result is None:
            k += 1
            continue
        kind, side, mine, theirs, instead = result
        as_norm = tuple(rank for rank in lists if keys[rank] == keys[norm])
        as_odd = tuple(rank for rank in lists if keys[rank] == keys[odd])
        have, lack = (as_norm, as_odd) if side == "norm" else (as_odd, as_norm)
        return Difference(kind, group, have, lack, mine, theirs, instead)
    return None


def _pair(norm, odd, before, lined):
    """(kind, which list has it, the collective, the other's, what the other started instead) for two lists that part.

    None if the first of both are one collective, started from two branches. `before`: the last that they shared.
    """
    if not norm:
        return "missing", "odd", odd[0], None, None
    if not odd:
        return "missing", "norm", norm[0], None, None
    left, right = [key(one, lined) for one in norm], [key(one, lined) for one in odd]
    one, other = norm[0], odd[0]
    if _swapped(left, right):
        return "order", "norm", one, other, None
    if one.lines == other.lines or not (one.stack and other.stack):
        return "unlike", "norm", one, other, None
    skipped_by_odd, skipped_by_norm = _goes_on(left, right), _goes_on(right, left)
    if skipped_by_odd == skipped_by_norm:  # the lists alone do not tell
        if not skipped_by_odd and _alike(one, other) and _by_rank(one) == _by_rank(other):
            return None
        skipped_by_norm = _comes_first(other, one, before)
    if skipped_by_norm:
        return "missing", "odd", other, None, one
    return "missing", "norm", one, None, other


def _goes_on(longer, shorter):
    """Do the lists go on together once the first few of `longer` are left out? A single pair of them says nothing."""
    for left_out in range(1, len(longer)):
        rest = longer[left_out : left_out + TOGETHER]
        if len(rest) > 1 and rest == shorter[: len(rest)]:
            return True
    return False


def _swapped(left, right):
    """The same few collectives in another order, and then on together."""
    for n in range(2, 9):
        if n > min(len(left), len(right)):
            return False
        if Counter(left[:n]) == Counter(right[:n]) and left[n : n + 1] == right[n : n + 1]:
            return True
    return False


def _alike(one, other):
    return one.name == other.name and _shape(one) == _shape(other)


def _by_rank(one: Collective) -> bool:
    return source_lines.speaks_of_rank(source_lines.decisive(one.own))


def _comes_first(one: Collective, other: Collective, before: Collective | None) -> bool:
    """Of two that met: would the script come to `one` before it comes to `other`, so that it is the one left out?

    What hangs on the rank comes first; then what stands in the loop of the collective before, where another rank
    has left it, be it the loop of a function that both have called; then the next line below that one.
    """
    if _by_rank(one) != _by_rank(other):
        return _by_rank(one)
    if before is None or not (before.own and one.own and other.own):
        return one.lines[::-1] < other.lines[::-1]
    stacks = [each.lines[::-1] for each in (before, one, other)]  # from the outermost line in
    level = next((i for i, each in enumerate(zip(*stacks, strict=False)) if len(set(each)) > 1), None)
    if level is None:
        return len(stacks[1]) < len(stacks[2])
    (file, start), first, second = (stack[level] for stack in stacks)
    begin, end = _innermost_loop(file, start)
    in_the_call = [_stays_in_the_call(stack, stacks[0], level) for stack in stacks[1:]]
    in_the_loop = [place[0] == file and begin <= place[1] <= end for place in (first, second)]
    for inside in (in_the_call, in_the_loop):
        if inside[0] != inside[1]:
            return inside[0]
    return (first[1] <= start, first[1]) < (second[1] <= start, second[1])


def _innermost_loop(file: str, line: int) -> tuple[int, int]:
    return next(iter(source_lines.loops_around(file, line)), (0, -1))


def _stays_in_the_call(stack, before, level):
    """Do two collectives come from one call at `level` of their stacks, in a loop of what was called?"""
    if stack[level] != before[level]:
        return False
    for (file, line), now in zip(before[level + 1 :], stack[level + 1 :], strict=False):
        begin, end = _innermost_loop(file, line)
        if file == now[0] and begin <= now[1] <= end:
            return True
        if now != (file, line):
            return False
    return False
