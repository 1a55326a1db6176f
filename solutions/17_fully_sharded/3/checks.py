"""17.3: load a checkpoint of DDP into FSDP2, with the optimizer's state, which is easily lost without an error."""

from ddp_course.grader.vocabulary import check, driver_job, expect, expect_small_gap, show

FUNCTION = "load"
KINDS = {
    "one group": "one group of parameters",
    "two groups": "vectors in the first group, matrices in the second",
    "SGD": "SGD with momentum, two groups",
    "frozen": "a frozen layer, and one that joined later; two groups",
}
CLOSE = 1e-9
LOADS = ("torch._dynamo", *(f"torch.distributed.{name}" for name in ("fsdp", "tensor", "checkpoint.state_dict")))
JOBS = [
    driver_job(world, FUNCTION, {KINDS[kind]: (kind,) for kind in kinds}, seconds=15.0, loads=LOADS)
    for world, kinds in ((2, KINDS), (3, ["two groups"]))
]


@check("the weights are those of the checkpoint")
def the_weights_are_those_saved(case, rank, result):
    for name, gap in result["weights"].items():
        look_at = "each rank takes its part of every parameter that rank 0 has read"
        if name == "scale":
            look_at = "a buffer: it is not sharded, and it is in the checkpoint too"
        expect_small_gap(gap, CLOSE, f"{name} on rank {rank}", look_at, "the checkpoint")


@check("every parameter has its averages and its count, on all ranks")
def the_optimizer_state_is_loaded(case, rank, result):
    missing = [(name, entry) for name, entry, gap in result["state"] if gap is None]
    expect(
        not missing,
        lambda: (
            f"{len(missing)} of {len(result['state'])} entries of the optimizer's state are missing on some rank "
            f"or not sharded as their parameter is, such as {missing[0][1]} of {missing[0][0]}"
        ),
        "the keys of the state that was saved, and those that the function looks for",
    )
    look_at = "which parameter a number in the saved state means: the numbers count the parameters group by group"
    for name, entry, gap in result["state"]:
        look = "the dtype in which it was sent or kept" if gap < 1e-6 else look_at
        expect_small_gap(gap, CLOSE, f"{entry} of {name} on rank {rank}", look, "what was saved")


@check("the settings of each group are those saved")
def the_settings_are_those_saved(case, rank, result):
    for number, (settings, right) in enumerate(zip(result["settings"], result["right settings"], strict=True)):
        for name, value in right.items():
            expect(
                settings.get(name) == value,
                f"group {number} on rank {rank} has the {name} {show(settings.get(name))}, not {show(value)}",
                "param_groups are part of the state too, with all settings of each group: a schedule had changed "
                "several",
            )


@check("three steps later the weights are those of the run that never stopped")
def it_continues_as_if_never_stopped(case, rank, result):
    name, gap = max(result["after"].items(), key=lambda named: named[1])
    look_at = "what load leaves behind: gradients, flags, hooks, or state that does not belong to the parameters"
    expect_small_gap(gap, CLOSE, f"three steps later {name} on rank {rank}", look_at, "the run that never stopped")
