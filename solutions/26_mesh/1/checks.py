"""26.1: the process groups of a mesh: which ranks differ along some of its axes alone."""

from itertools import product
from math import prod

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong

FUNCTION = "groups"
ALL = [("tp",), ("dp",), ("dp", "tp")]
RUNS = {  # by number of ranks: sizes of the mesh, what is asked for
    4: [
        ({"dp": 2, "tp": 2}, ALL),
        ({"pp": 2, "dp": 1, "tp": 2}, [("pp",), ("dp",), ("tp",), ("tp", "dp"), ("pp", "tp")]),
        ({"dp": 2, "tp": 1, "pp": 2}, [("pp",), ("dp",), ("pp", "dp")]),
        ({"dp": 4, "tp": 1}, ALL),
        ({"pp": 2, "dp": 2, "tp": 1}, [("pp", "tp"), ("pp",)]),
    ],  # two axes with another one between them
    2: [({"dp": 1, "tp": 2}, ALL), ({"dp": 2, "tp": 1}, ALL), ({"dp": 2, "tp": 2}, ALL), ({"dp": 1, "tp": 1}, ALL)],
    1: [({"dp": 1, "tp": 1}, ALL)],
}


def named(sizes):
    return " x ".join(f"{axis} {size}" for axis, size in sizes.items())


def job(world):
    calls = tuple(Call([(sizes, over)] * world, named(sizes)) for sizes, over in RUNS[world])
    return Job(world, FUNCTION, calls, seconds=10.0, driver=True)


JOBS = [job(world) for world in RUNS]


def other_products_are_refused(records):
    """Where the sizes make another number of ranks, every rank raises ValueError that names both numbers."""
    for case, rank, sizes, _, result in results(records):
        places, said = prod(sizes.values()), result.get("refused")
        if places == case.world:
            if said is not None:
                look = "when to refuse: here the product of the sizes is the number of ranks"
                raise Wrong(f"{case.where}rank {rank} raised ValueError: {said[:80]}", look)
        elif said is None:
            look = "compare the product of the sizes with dist.get_world_size() first, on every rank"
            raised = f"{result['raised']} and no ValueError" if "raised" in result else "no ValueError"
            raise Wrong(f"{case.where}rank {rank} raised {raised}", look)
        elif str(places) not in said or str(case.world) not in said:
            raise Wrong(
                f"{case.where}rank {rank} raised ValueError: {said[:80]!r}, without {places} or without {case.world}",
                "a message with the places of the mesh and the number of ranks",
            )
    return "a mesh of another size is refused, with both numbers"


def a_group_per_entry(records):
    """Every rank gets a list with one process group for each entry of `over`, also where it is alone."""
    for case, rank, _, over, result in results(records):
        if result.get("returned"):
            look = "one entry per entry of `over`, in their order; a rank that is alone is in a group as well"
            raise Wrong(f"{case.where}rank {rank} returned {result['returned']}, not {len(over)} process groups", look)
    return "one group per entry, also for a rank that is alone"


def the_right_ranks(records):
    """A rank's group has those that differ from it along the axes of the entry alone, and all of them answer there."""
    for case, rank, sizes, over, result in results(records):
        for axes, ranks, answered in zip(over, result.get("ranks", ()), result.get("answered", ()), strict=False):
            right, name = line_of(sizes, axes, rank), f"the group of rank {rank} over {' and '.join(axes)}"
            if ranks != right:
                observed = f"{case.where}{name} has the ranks {ranks}, not {right}"
                raise Wrong(observed, look(records))
            if answered != right:
                raise Wrong(
                    f"{case.where}in {name} the ranks {answered} answered, not {right}",
                    "every rank has to build the same groups in the same order, also those that it is not in",
                )
    return "the last axis counts fastest, on one axis and over several"


def each_group_is_built_once(records):
    """A rank is in no more new groups than `over` has entries; one for each axis may come on top."""
    for case, rank, sizes, over, result in results(records):
        if result.get("built", 0) > len(over) + len(sizes):
            raise Wrong(
                f"{case.where}rank {rank} is in {result['built']} new groups; {len(over)} were asked for",
                "each group opens connections of its own: is it built once, or once for each of its ranks?",
            )
    return "each group is built once"


def nothing_is_sent(records):
    """The coordinates follow from the sizes: no rank asks another one."""
    for case, rank, _, _, _ in results(records):
        own = [one for one in case.operations[rank] if one.line is not None]
        if own:
            raise Wrong(
                f"{case.where}rank {rank} started {len(own)} operations, {own[0].op} first",
                "every rank can compute the place of every other one",
            )
    return "no rank has to ask another one"


CHECKS = [other_products_are_refused, a_group_per_entry, the_right_ranks, each_group_is_built_once, nothing_is_sent]


def line_of(sizes, axes, rank, last_first=False):
    """The ranks at the place of `rank` on all axes but these. last_first: if the first axis counted fastest."""
    places = list(product(*(range(size) for size in (reversed(sizes.values()) if last_first else sizes.values()))))
    names = list(reversed(sizes) if last_first else sizes)
    fixed = [number for number, name in enumerate(names) if name not in axes]
    return [other for other, place in enumerate(places) if all(place[n] == places[rank][n] for n in fixed)]


def look(records):
    """Where to look, by what all groups of all ranks have in common."""
    found = [
        (sizes, axes, rank, ranks)
        for _, rank, sizes, over, result in results(records)
        for axes, ranks in zip(over, result.get("ranks", ()), strict=False)
    ]
    if all(ranks == line_of(sizes, axes, rank, last_first=True) for sizes, axes, rank, ranks in found):
        return "which axis counts fastest: it is the last one"
    if all(ranks == line_of(sizes, set(sizes) - set(axes), rank) for sizes, axes, rank, ranks in found):
        return "along which axes the ranks of a group differ, and on which they agree"
    if all(any(ranks == line_of(sizes, [axis], rank) for axis in axes) for sizes, axes, rank, ranks in found):
        return "an entry with two axes: its group has the ranks that differ on either of them or on both"
    if all(len(ranks) == prod(sizes.values()) for sizes, _, _, ranks in found):
        return "which group is returned: the one that new_group has given for these ranks"
    if all(ranks == line_of(sizes, axes, rank) for sizes, axes, rank, ranks in found if len(axes) == 1):
        return "an entry with two axes: another axis may lie between them, and its groups need not be in a row"
    return "how many ranks one step along an axis is: the product of the sizes of all axes after it"


def results(records):
    """Each case, rank, sizes of the mesh, what was asked for, and what the rank found."""
    for case in cases(records):
        for rank, (result, (sizes, over)) in enumerate(zip(case.results, case.args, strict=True)):
            yield case, rank, sizes, over, result
