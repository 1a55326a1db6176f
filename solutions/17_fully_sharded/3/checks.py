"""17.3: a checkpoint of DDP into FSDP2, with the optimizer's state, which is lost without a word."""

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.verdict import Wrong

FUNCTION = "load"
KINDS = {
    "one group": "one group of parameters",
    "two groups": "vectors in the first group, matrices in the second",
    "SGD": "SGD with momentum, two groups",
    "frozen": "a frozen layer, and one that joined later; two groups",
}
CLOSE = 1e-9


def job(world, kinds):
    calls = tuple(Call([(kind,)] * world, KINDS[kind]) for kind in kinds)
    loads = (
        "torch._dynamo",
        "torch.distributed.fsdp",
        "torch.distributed.tensor",
        "torch.distributed.checkpoint.state_dict",
    )
    return Job(world, FUNCTION, calls, seconds=15.0, driver=True, loads=loads)


JOBS = [job(2, KINDS), job(3, ["two groups"])]


def the_weights_are_those_saved(records):
    """After load, the sharded model has the weights and buffers of the checkpoint."""
    for case, rank, result in results(records):
        for name, gap in result["weights"].items():
            if not gap < CLOSE:
                look = "each rank takes its part of every parameter that rank 0 has read"
                if name == "scale":
                    look = "a buffer: it is no parameter, is not cut, and is in the checkpoint too"
                raise Wrong(f"{case.where}{name} on rank {rank} is {gap:.1e} away from the checkpoint", look)
    return "the weights are those of the checkpoint"


def the_optimizer_goes_on(records):
    """Each parameter has the state that was saved for it: averages and the count of updates."""
    for case, rank, result in results(records):
        missing = [(name, entry) for name, entry, gap in result["state"] if gap is None]
        if missing:
            name, entry = missing[0]
            raise Wrong(
                f"{case.where}{len(missing)} of {len(result['state'])} entries of the optimizer's state are missing on "
                f"some rank or not sharded as their parameter is, such as {entry} of {name}",
                "the keys of the state that was saved, and those that the function looks for",
            )
        for name, entry, gap in result["state"]:
            if not gap < CLOSE:
                raise Wrong(
                    f"{case.where}{entry} of {name} on rank {rank} is {gap:.1e} away from what was saved",
                    "which number is which parameter: they are counted group by group",
                )
    return "every parameter has its averages and its count, on all ranks"


def the_settings_are_those_saved(records):
    """Each group has the settings that were saved: learning rate, weight decay and whatever else there was."""
    for case, rank, result in results(records):
        for number, (mine, right) in enumerate(zip(result["settings"], result["right settings"], strict=True)):
            for name, value in right.items():
                if mine.get(name) != value:
                    raise Wrong(
                        f"{case.where}group {number} on rank {rank} has the {name} {shown(mine.get(name))}, not "
                        f"{shown(value)}",
                        "param_groups are part of the state too, with all settings of each group: a schedule had "
                        "changed several",
                    )
    return "the settings of each group are those saved"


def it_goes_on_as_if_never_stopped(records):
    """Three updates later the weights are those of the run that never stopped."""
    for case, rank, result in results(records):
        name = max(result["after"], key=result["after"].get)
        if not result["after"][name] < CLOSE:
            raise Wrong(
                f"{case.where}three updates later {name} on rank {rank} is {result['after'][name]:.1e} away from the "
                "run that never stopped",
                "what load leaves behind: gradients, flags, hooks, or state that does not belong to the parameters",
            )
    return "three updates later the weights are those of the run that never stopped"


CHECKS = [
    the_weights_are_those_saved,
    the_optimizer_goes_on,
    the_settings_are_those_saved,
    it_goes_on_as_if_never_stopped,
]


def results(records):
    for case in cases(records):
        for rank, result in enumerate(case.results):
            yield case, rank, result


def shown(setting):
    return f"{setting:.6g}" if isinstance(setting, float) else str(setting)
