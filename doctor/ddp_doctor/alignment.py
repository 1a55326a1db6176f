"""Finds the first collective in which the ranks differ.

Sequence numbers do not show it: after a skipped collective of equal size, each later one pairs with its neighbour, and
only the last is left over. So the ranks' lists are aligned by the source lines that started the collectives.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ddp_doctor import source_lines
from ddp_doctor.history import Collective, History

SAME_SIZE_EVERYWHERE = {"all_reduce", "broadcast", "reduce", "all_gather_single", "all_gather_base"}
LOOKAHEAD = 40  # collectives compared, from the first that differs
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
    """The first difference in each process group that has one, the default group's first.

    histories: by rank. members: group -> its ranks; for a group without them, the ranks that used it, or in the
    default group all.
    """
    groups = {group for history in histories.values() for group in history.collectives}
    first_differences = []
    for group in sorted(groups, key=lambda group: (group != "0", group)):
        users = [rank for rank, history in histories.items() if group in history.collectives or group == "0"]
        ranks = [rank for rank in members.get(group, users) if rank in histories]
        lists = _from_a_common_start(
            {rank: histories[rank].collectives.get(group, ()) for rank in ranks},
            all(histories[rank].complete for rank in ranks),
        )
        if len(lists) > 1 and (difference := _first_difference(group, lists)):
            first_differences.append(difference)
    return first_differences


def _from_a_common_start(lists, complete):
    """The lists, cut to begin at the first number that all have; as they are if `complete`, or if one is empty."""
    if complete or not all(lists.values()):
        return lists
    first = max(collectives[0].number for collectives in lists.values())
    return {rank: tuple(each for each in started if each.number >= first) for rank, started in lists.items()}


def key(collective: Collective, with_lines: bool = True):
    """The key that two collectives share if they are the same one: name, sizes and types, and the source lines.

    Without sizes and types where ranks may differ: only the root of a scatter or gather has tensors, and all-to-all may
    send any sizes.
    """
    sizes_and_types = (collective.sizes, collective.dtypes) if collective.name in SAME_SIZE_EVERYWHERE else None
    return collective.name, sizes_and_types, collective.lines if with_lines else ()


def _first_difference(group, lists) -> Difference | None:
    """The first difference in `lists`, rank -> its collectives of the group; None if there is none.

    Where they differ, a rank of the majority (`norm`) is compared with one that is not of it (`odd`).
    """
    # A rank that died in its first second may have left no stacks.
    with_lines = all(collective.stack for collectives in lists.values() for collective in collectives)
    for position in range(max(map(len, lists.values()))):
        started = {rank: collectives[position : position + 1] for rank, collectives in lists.items()}
        keys = {rank: key(*each, with_lines) if each else None for rank, each in started.items()}
        if len(set(keys.values())) == 1:
            continue
        counts = Counter(keys.values())
        usual = max((candidate for candidate in counts if candidate is not None), key=counts.get)
        if counts[None] > counts[usual]:  # most ranks have started no more: the odd one has started one too many
            usual = None
        norm = [rank for rank in keys if keys[rank] == usual]
        odd_key = next(keys[rank] for rank in keys if keys[rank] != usual)
        odd = [rank for rank in keys if keys[rank] == odd_key]
        last_shared = lists[norm[0]][position - 1] if position else None
        sides = ((tuple(ranks), lists[ranks[0]][position : position + LOOKAHEAD]) for ranks in (norm, odd))
        if difference := _compare(group, *sides, last_shared, with_lines):
            return difference
    return None


def _compare(group, norm_side, odd_side, last_shared, with_lines) -> Difference | None:
    """The difference of two sides; None if their first collectives are one, started from two branches of the script.

    A side: (ranks, the collectives of one of them from the first that differs). last_shared: the one before, or None.
    """
    (norm_ranks, norm), (odd_ranks, odd) = norm_side, odd_side
    norm_first, odd_first = (collectives[0] if collectives else None for collectives in (norm, odd))
    skipped_by_norm = Difference("missing", group, odd_ranks, norm_ranks, odd_first, instead=norm_first)
    skipped_by_odd = Difference("missing", group, norm_ranks, odd_ranks, norm_first, instead=odd_first)
    if not norm or not odd:
        return skipped_by_odd if norm else skipped_by_norm
    norm_keys, odd_keys = ([key(collective, with_lines) for collective in side] for side in (norm, odd))
    if _swapped(norm_keys, odd_keys):
        return Difference("order", group, norm_ranks, odd_ranks, norm_first, odd_first)
    if norm_first.lines == odd_first.lines or not (norm_first.stack and odd_first.stack):
        return Difference("unlike", group, norm_ranks, odd_ranks, norm_first, odd_first)
    odd_catches_up, norm_catches_up = _matches_later(norm_keys, odd_keys), _matches_later(odd_keys, norm_keys)
    if odd_catches_up == norm_catches_up:  # the lists alone do not show which rank has skipped
        alike = key(norm_first, with_lines=False) == key(odd_first, with_lines=False)
        if not odd_catches_up and alike and _depends_on_rank(norm_first) == _depends_on_rank(odd_first):
            return None
        norm_catches_up = _comes_first(odd_first, norm_first, last_shared)
    return skipped_by_norm if norm_catches_up else skipped_by_odd


def _matches_later(longer, shorter):
    """Do the lists match again once the first few of `longer` are left out? A single equal pair is no match."""
    rests = (longer[left_out : left_out + ALIKE_IN_A_ROW] for left_out in range(1, len(longer)))
    return any(len(rest) > 1 and rest == shorter[: len(rest)] for rest in rests)


def _swapped(left, right):
    """Do both lists begin with the same two to eight collectives in another order, and then have the same one?"""
    lengths = range(2, min(8, len(left), len(right)) + 1)
    return any(Counter(left[:n]) == Counter(right[:n]) and left[n : n + 1] == right[n : n + 1] for n in lengths)


def _depends_on_rank(collective: Collective) -> bool:
    return source_lines.depends_on_rank(source_lines.deciding_condition(collective.own))


def _comes_first(left: Collective, right: Collective, last_shared: Collective | None) -> bool:
    """Does the script reach `left` before `right`, so that `left` is the collective that was skipped?

    A collective under a condition on the rank comes first; then one in the loop of `last_shared` that the other rank
    has left (also a loop of a function that both called); then the next line below `last_shared`.
    """
    if _depends_on_rank(left) != _depends_on_rank(right):
        return _depends_on_rank(left)
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
    """First and last line of the innermost loop around a line; (0, -1), which holds no line, if there is none."""
    return next(iter(source_lines.loops_around(file, line)), (0, -1))


def _stays_in_the_call(stack, earlier, level):
    """Does `stack` make the same call at `level` as `earlier`, and is it, below that, in a loop that `earlier` was in?

    Stacks of (file, line), outermost first.
    """
    if stack[level] != earlier[level]:
        return False
    for (file, line), now in zip(earlier[level + 1 :], stack[level + 1 :], strict=False):
        begin, end = _innermost_loop(file, line)
        if file == now[0] and begin <= now[1] <= end:
            return True
        if now != (file, line):
            return False
    return False
