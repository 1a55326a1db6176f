"""26.1: the process groups of a mesh: the ranks that differ along some of its axes only."""

from itertools import product
from math import prod

from ddp_course.grader.vocabulary import cases, check, driver_job, expect, expect_no_operations

FUNCTION = "groups"
OVER = [("tp",), ("dp",), ("dp", "tp")]
RUNS = {  # by number of ranks: the sizes of the mesh, and the axes of each group that is asked for
    4: [
        ({"dp": 2, "tp": 2}, OVER),
        ({"pp": 2, "dp": 1, "tp": 2}, [("pp",), ("dp",), ("tp",), ("tp", "dp"), ("pp", "tp")]),
        ({"dp": 2, "tp": 1, "pp": 2}, [("pp",), ("dp",), ("pp", "dp")]),
        ({"dp": 4, "tp": 1}, OVER),
        ({"pp": 2, "dp": 2, "tp": 1}, [("pp", "tp"), ("pp",)]),  # an axis lies between pp and tp
    ],
    2: [({"dp": 1, "tp": 2}, OVER), ({"dp": 2, "tp": 1}, OVER), ({"dp": 2, "tp": 2}, OVER), ({"dp": 1, "tp": 1}, OVER)],
    1: [({"dp": 1, "tp": 1}, OVER)],
}


def mesh_name(sizes):
    return " x ".join(f"{axis} {size}" for axis, size in sizes.items())


JOBS = [
    driver_job(world, FUNCTION, {mesh_name(sizes): (sizes, over) for sizes, over in runs}, seconds=10.0)
    for world, runs in RUNS.items()
]


@check("a mesh of another size is refused, with both numbers")
def other_products_are_refused(case, rank, result):
    size, refused = prod(case.args[rank][0].values()), result.get("refused")
    if size == case.world:
        expect(
            refused is None,
            f"rank {rank} raised ValueError: {str(refused)[:80]}",
            "when to refuse: here the product of the sizes is the number of ranks",
        )
        return
    raised = f"{result['raised']} and no ValueError" if "raised" in result else "no ValueError"
    expect(
        refused is not None,
        f"rank {rank} raised {raised}",
        "compare the product of the sizes with dist.get_world_size() first, on every rank",
    )
    expect(
        str(size) in refused and str(case.world) in refused,
        f"rank {rank} raised ValueError: {refused[:80]!r}, without {size} or without {case.world}",
        "a message with the product of the sizes and the number of ranks",
    )


@check("one group per entry, also for a rank that is alone")
def a_group_per_entry(case, rank, result):
    expect(
        not result.get("returned"),
        f"rank {rank} returned {result.get('returned')}, not {len(case.args[rank][1])} process groups",
        "one group per entry of `over`, in their order; a rank that is alone is in a group as well",
    )


@check("the last axis counts fastest, on one axis and over several")
def the_right_ranks(records):
    """The check of a group; where to look depends on the groups of all ranks."""
    for case, rank, sizes, axes, ranks, answered in each_group(records):
        right, name = line_of(sizes, axes, rank), f"the group of rank {rank} over {' and '.join(axes)}"
        expect(ranks == right, f"{case.where}{name} has the ranks {ranks}, not {right}", lambda: where_to_look(records))
        expect(
            answered == right,
            f"{case.where}in {name} the ranks {answered} answered, not {right}",
            "every rank has to build the same groups in the same order, also those that it is not in"
            if answered is None
            else "which group each rank returns: all ranks of a group have to return the same one",
        )


@check("each group is built once")
def each_group_is_built_once(case, rank, result):
    expect(
        "unlike" not in result,
        result.get("unlike"),
        "new_group waits for all ranks: each builds every group, in the same order, also those that it is not in",
    )
    sizes, over = case.args[rank]
    built = result.get("built", 0)
    expect(
        built <= len(over) + len(sizes),  # one more for each axis is allowed
        f"rank {rank} is in {built} new groups; {len(over)} were asked for",
        "each group opens connections of its own: is it built once, or once for each of its ranks?",
    )


@check("no rank has to ask another one")
def nothing_is_sent(case, rank, result):
    started = [operation for operation in case.operations[rank] if operation.line is not None]
    expect_no_operations(rank, started, "every rank can compute the coordinates of every other one")


def line_of(sizes, axes, rank, first_fastest=False):
    """The ranks with the coordinates of `rank` on all axes but `axes`.

    first_fastest: the first axis counts fastest, not the last one.
    """
    names = list(reversed(sizes) if first_fastest else sizes)
    coordinates = list(product(*(range(sizes[name]) for name in names)))
    fixed = [number for number, name in enumerate(names) if name not in axes]
    return [peer for peer, point in enumerate(coordinates) if all(point[n] == coordinates[rank][n] for n in fixed)]


def where_to_look(records):
    """Where to look, by what all groups of all ranks have in common."""
    built = [(sizes, axes, rank, ranks) for _, rank, sizes, axes, ranks, _ in each_group(records)]
    if all(ranks == line_of(sizes, axes, rank, first_fastest=True) for sizes, axes, rank, ranks in built):
        return "which axis counts fastest: it is the last one"
    if all(ranks == line_of(sizes, set(sizes) - set(axes), rank) for sizes, axes, rank, ranks in built):
        return "along which axes the ranks of a group differ, and on which they agree"
    if all(set(ranks) <= set(line_of(sizes, axes, rank)) for sizes, axes, rank, ranks in built):
        return "an entry with two axes: its group has the ranks that differ on either of them or on both"
    if all(len(ranks) == prod(sizes.values()) for sizes, _, _, ranks in built):
        return "which group is returned: the one that new_group returned for these ranks"
    if all(ranks == line_of(sizes, axes, rank) for sizes, axes, rank, ranks in built if len(axes) == 1):
        return "an entry with two axes: another axis may lie between them, and its groups need not be in a row"
    return "how many ranks one step along an axis is: the product of the sizes of all axes after it"


def each_group(records):
    """Each group: the case, the rank, the sizes of the mesh, the axes, the ranks in it and those that answered."""
    for case in cases(records):
        for rank, (result, (sizes, over)) in enumerate(zip(case.results, case.args, strict=True)):
            for axes, ranks, answered in zip(over, result.get("ranks", ()), result.get("answered", ()), strict=False):
                yield case, rank, sizes, axes, ranks, answered
