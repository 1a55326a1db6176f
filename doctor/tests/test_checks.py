"""The checks of `doctor check` on records of sound runs that are edited: what each says, or why it cannot decide."""

import copy
import math
import pickle

from cases import cases
from check_cases import audited_run
from ddp_doctor.checks import CHECKS
from ddp_doctor.checks.finding import result_of
from ddp_doctor.checks.samples import AUGMENTS
from ddp_doctor.checks.validation import BETTER
from ddp_doctor.history import Frame

BASES = {
    "R": "resumes_at_its_step",  # and has dropout
    "L": "careful_trainer",  # reads DataLoaders, clips, validates, has buffers and dropout
}
BOTH = (0, 1)
FRAMES = (Frame("/x/train.py", 3, "train"),)


def put(kind, ranks=BOTH, begin=0, end=None, **facts):
    """Sets facts of the events of a kind, from number `begin` on, on these ranks: a value, or a function of the old."""

    def edit(run):
        for rank in ranks:
            for event in run.audits[rank].of(kind)[begin:end]:
                for name, fact in facts.items():
                    event[name] = fact(event.get(name)) if callable(fact) else fact

    return edit


def add(kind, at, ranks=BOTH, **facts):
    def edit(run):
        for rank in ranks:
            run.audits[rank].events.append({"event": kind, "at": at, "frames": FRAMES, **facts})
            run.audits[rank].events.sort(key=lambda event: event["at"])

    return edit


def without(*kinds, ranks=BOTH, begin=0, end=None):
    def edit(run):
        for rank in ranks:
            left_out = [event for kind in kinds for event in run.audits[rank].of(kind)[begin:end]]
            run.audits[rank].events = [event for event in run.audits[rank].events if event not in left_out]

    return edit


def filled(value):
    """Gradients of the four parameters, each number the same."""
    return [[value] * 6] * 3 + [[value]]


COLUMN, TRANSPOSED, REPEATED = [[4], [2]], [[2, 3], [1, 2]], [[1000], [0]]  # views: shape and strides


def gives(name, views, ranks=BOTH):
    """Gives the first collective another name, and these views on these ranks."""

    def edit(run):
        put("collective", end=1, name=name)(run)
        put("collective", ranks, end=1, views=views)(run)

    return edit


def opposite(run):
    """Gradients that nearly cancel out in the mean over the ranks."""
    for rank, sign in enumerate((1, -1)):
        put("step", (rank,), local=filled(sign + 1e-4), used=filled(0.5))(run)


def not_sent(run):
    """Lets each rank use its own gradient, and hold its own weights after the first step."""
    for step in (step for audit in run.audits.values() for step in audit.of("step")):
        step["used"] = step["local"]
    put("step", (1,), weights_after=other, sums=[[9.0, 9.0]] * 9)(run)
    put("step", (1,), begin=1, weights_before=other)(run)


def in_calls(ranks=BOTH, end=None, train=True, **facts):
    """Sets facts of the calls of a model in training, or in validation, that have them."""

    def edit(run):
        for rank in ranks:
            calls = [
                call
                for call in run.audits[rank].of("call")
                if call["gradients"] == train and facts.keys() <= call.keys()
            ]
            for call in calls[:end]:
                call.update({name: fact(call[name]) if callable(fact) else fact for name, fact in facts.items()})

    return edit


def cleared(run):
    """Lets each rank clear its gradients before each step but the first."""
    for step in run.audits[0].of("step")[1:]:
        add("cleared", step["at"] - 0.5)(run)


def third_rank(run):
    run.audits[2] = copy.deepcopy(run.audits[1])


def same(kind, name, begin=0, end=None, step=1):
    """Gives rank 1 what rank 0 has in the events of a kind, from number `begin` on; with step=-1 in reverse."""

    def edit(run):
        of_0, of_1 = ([e for e in run.audits[rank].of(kind) if name in e][begin:end] for rank in BOTH)
        for event, other_event in zip(of_1, of_0[::step], strict=False):
            event[name] = copy.deepcopy(other_event[name])

    return edit


def own_metric(percent=1, count=1):
    """Lets rank 0 print what it has summed over its share of the validation data, divided by a count."""

    def edit(run):
        audit = run.audits[0]
        printed = audit.of("print")[0]
        total = sum(item["value"] for item in audit.between(0, printed["at"], "item") if not item["gradients"])
        printed["numbers"] = [f"{percent * total / count:.4f}"]

    return edit


def second_epoch_as_first(run):
    """Lets each rank read the second epoch in the order of the first."""
    for audit in run.audits.values():
        first, later = ([e for e in audit.of("indices") if (e["loader"], e["epoch"]) == (0, n)] for n in (0, 1))
        for event, earlier in zip(later, first, strict=True):
            event["indices"] = earlier["indices"]


def validates_on_training_data(of_rank, count=None, ranks=(0,)):
    """Lets ranks validate on samples that one rank trains on."""

    def edit(run):
        samples = run.audits[of_rank].training_calls()[0]["samples"][:count]
        in_calls(ranks, train=False, samples=samples)(run)
        for call in (call for audit in run.audits.values() for call in audit.training_calls()[7:]):
            call["samples"] = None

    return edit


def starts_from(number):
    """Lets the second run start with the weights that the first had after this number of steps."""

    def edit(run):
        for rank, audit in run.audits.items():
            steps = audit.of("step")
            weights = [*(step["weights_before"] for step in steps), steps[-1]["weights_after"]][number]
            put("step", (rank,), end=1, weights_before=weights)(run.second)

    return edit


def several(*edits):
    return lambda run: [edit(run) for edit in edits]


def has(**facts):
    return lambda run: [setattr(run, name, fact) for name, fact in facts.items()]


def second(edit):
    return lambda run: edit(run.second)


def single(edit):
    return lambda run: edit(run.single)


def other(checksums):
    return [each + 1 for each in checksums]


def times(factor):
    return lambda gradients: [[factor * value for value in values] for values in gradients]


def scaled(factor):
    """An edit of the gradients that the optimizers used."""
    return put("step", used=times(factor))


def other_weights(begin=0, **facts):
    """An edit that makes rank 1's weights others from a step on."""
    return several(
        put("step", (1,), begin, weights_after=other, sums=[[9.0, 9.0]] * 9, **facts),
        put("step", (1,), begin + 1 if begin else 0, weights_before=other),
    )


NO_GROUP, NO_DDP = without("group begins", "group ends"), without("ddp")
OWN = {"on_gradients": True, "is_async": False, "values": [], "number": 900}
OWN_SEND, OWN_SUM = (add("collective", 5, name=name, **OWN) for name in ("send", "all_reduce"))
ASYNC = {"on_gradients": False, "is_async": True, "values": [], "number": 901}
ONE_TRANSPOSED = gives("all_reduce", [TRANSPOSED], (1,))
STARTS_APART = put("step", (1,), end=1, weights_before=other)
MODEL_PARALLEL = add("collective", 3.5, name="send", on_gradients=False, is_async=False, values=[], number=902)
BUFFERS_DIFFER = several(*(put("call", (rank,), buffers={"mean": rank, "var": rank}) for rank in BOTH))
MEANS_DIFFER = several(*(put("call", (rank,), buffers={"mean": rank + 1}) for rank in BOTH))
SUMS_OF_10_AND_5 = several(put("backward", reduction="sum", factor=0.1), put("backward", (1,), factor=0.2))
OTHER_START, OTHER_GRADIENTS = put("step", weights_before=other), put("step", gradients=other)
NO_STATE = put("step", state=[None] * 4)
SAME_SAMPLES = several(same("indices", "indices"), put("batch", samples=None))
NOTHING_SENT = without("collective")
ALL_PRINT = several(add("print", 99, (1,), numbers=[]), put("print", frames=FRAMES))
PADDED = several(put("epoch", distributed=True), same("indices", "indices", 7, 8))
PRINTED = several(
    put("backward", (0,), end=1, value=0.777),
    put("backward", (1,), end=1, value=0.2),
    add("print", 6.5, (0,), numbers=["0.777"]),
)
ROUNDED = put("print", numbers=["0.7"])
RATE_3 = put("rates", highest=[0.15])
REVERSED = same("batch", "samples", end=7, step=-1)
SHARE = same("batch", "samples", 1, 4)
DRAW = add("draw", 6.5, generator="numpy", state=1, is_array=False)
TORCH_DRAWS = put("fetch", drawn={"torch": 1})
LOADER_OF_ITS_OWN = put("epoch", distributed=False)
ROWS = [
    ("views", "R", [NO_GROUP], "unknown", "no process group"),
    ("views", "R", [], "ok", "contiguous, or laid out alike"),
    ("views", "R", [gives("all_reduce", [TRANSPOSED])], "ok", "contiguous, or laid out alike"),
    ("views", "R", [ONE_TRANSPOSED], "wrong", "rank 1 gives all_reduce a view of shape [2, 3]"),
    ("views", "R", [gives("broadcast", [COLUMN])], "wrong", "rank 0 gives broadcast a view of shape [4] with strides"),
    ("views", "R", [gives("reduce", [REPEATED])], "wrong", "strides [0]; gloo takes the 1,000 numbers that lie next"),
    ("views", "R", [gives("scatter", [TRANSPOSED])], "wrong", "rank 0 gives scatter a view of shape [2, 3]"),
    ("views", "R", [gives("reduce_scatter", [COLUMN, COLUMN])], "ok", "contiguous, or laid out alike"),
    ("views", "R", [gives("reduce_scatter", [TRANSPOSED])], "wrong", "Pass x.contiguous()"),
    ("views", "R", [gives("all_gather", [COLUMN])], "ok", "contiguous, or laid out alike"),
    ("exit", "R", [NO_GROUP], "unknown", "made no process group"),
    ("exit", "R", [has(complete=False)], "unknown", "did not come to its end"),
    ("exit", "R", [without("group ends")], "wrong", "ranks 0, 1 never called"),
    ("exit", "R", [without("group ends"), put("group begins", made_by="library")], "unknown", "a library made"),
    ("exit", "R", [NO_GROUP, add("group begins", 1, (0,)), add("group ends", 99, (0,))], "ok", "on every rank"),
    ("timeout", "R", [NO_GROUP], "unknown", "itself made no process group"),
    ("timeout", "R", [put("group begins", made_by="library")], "unknown", "itself made no process group"),
    ("threads", "R", [NO_GROUP], "unknown", "made no process group"),
    ("threads", "R", [has(cores=1)], "ok", "1 thread x 2 processes, 1 cores"),
    ("threads", "R", [put("group ends", threads=2), has(cores=4)], "ok", "2 threads x 2 processes, 4 cores"),
    ("threads", "R", [put("group ends", threads=2)], "wrong", "2 threads x 2 processes, 2 cores"),
    ("threads", "R", [NO_GROUP, add("threads", 1, number=4), add("threads", 2, number=2)], "wrong", "4 threads"),
    ("replicas", "R", [NO_GROUP], "unknown", "no optimizer"),
    ("replicas", "R", [put("optimizer", (1,), shapes=[[8]])], "unknown", "no optimizer"),
    ("replicas", "R", [put("step", weights_after=[0])], "unknown", "no optimizer"),
    ("replicas", "R", [without("step", ranks=(1,))], "unknown", "no optimizer"),
    ("replicas", "R", [put("step", weights_before=[None] * 4)], "unknown", "no optimizer"),
    ("replicas", "R", [put("step", sums=[[math.nan, math.nan]] * 4)], "ok", "equal after each of 6 steps"),
    ("replicas", "R", [other_weights()], "wrong", "start from different weights"),
    ("replicas", "R", [other_weights(), NO_DDP], "unknown", "whether they should is not known"),
    ("replicas", "R", [other_weights(), NO_DDP, OWN_SEND], "unknown", "whether they should is not known"),
    ("replicas", "R", [other_weights(2, gradients=other)], "wrong", "from step 3 on; the ranks step with different"),
    ("replicas", "R", [other_weights(2, state=[1] * 4)], "wrong", "the optimizers' states differ"),
    ("replicas", "R", [other_weights(2)], "wrong", "different steps from the same gradient"),
    ("unused", "R", [put("step", has_closure=True)], "unknown", "calls a closure"),
    ("unused", "R", [put("step", has_gradient=[False, True, True, True])], "note", "1 of 4 parameters (of shape [8,"),
    ("unused", "R", [put("step", has_gradient=[False] * 4), other_weights()], "wrong", "the replicas differ"),
    ("unused", "R", [put("step", has_gradient=[False] * 4), other_weights(), NO_DDP], "note", "never got a gradient."),
    ("averaged", "R", [scaled(2)], "wrong", "summed over 2 ranks"),
    ("averaged", "R", [scaled(2), put("backward", factor=0.5)], "ok", "divided by their number"),
    ("averaged", "R", [scaled(2), put("backward", factor=0.7)], "unknown", "right only if"),
    ("averaged", "R", [scaled(2), put("backward", reduction="other")], "unknown", "right only if"),
    ("averaged", "R", [scaled(0.5)], "wrong", "divided twice"),
    ("averaged", "R", [scaled(0.5), put("backward", factor=2.0)], "unknown", "0.5 times the mean"),
    ("averaged", "R", [scaled(3)], "unknown", "3 times the mean"),
    ("averaged", "R", [put("step", local=[None] * 4)], "unknown", "could not be compared"),
    ("averaged", "R", [put("step", local=[[0.0]] * 4, used=[[0.0]] * 4)], "unknown", "could not be compared"),
    ("averaged", "R", [put("step", used=[[1.0] * 6] * 3 + [None])], "unknown", "could not be compared"),
    ("averaged", "R", [put("step", local=filled(1.0), used=filled(0.4))], "unknown", "equal"),
    ("averaged", "R", [put("step", local=filled(1.0), used=filled(2.0))], "wrong", "summed"),
    ("averaged", "R", [opposite], "unknown", "could not be compared"),
    ("averaged", "R", [not_sent], "wrong", "each rank steps with its own."),
    ("averaged", "R", [not_sent, STARTS_APART], "wrong", "each rank steps with its own."),
    ("averaged", "R", [not_sent, put("call", syncs=False)], "wrong", "all passes ran under no_sync()"),
    ("averaged", "R", [not_sent, put("call", end=-2, syncs=False)], "wrong", "the last pass before a step ran under"),
    ("averaged", "R", [not_sent, NO_DDP], "wrong", "no gradient is sent between the ranks"),
    ("averaged", "R", [not_sent, NO_DDP, without("backward")], "wrong", "no gradient is sent between the ranks"),
    ("averaged", "R", [not_sent, NO_DDP, STARTS_APART], "unknown", "could not be compared"),
    ("averaged", "R", [not_sent, NO_DDP, MODEL_PARALLEL], "unknown", "could not be compared"),
    ("averaged", "R", [not_sent, NO_DDP, add("collective", 6.5, name="all_reduce", **OWN)], "wrong", "each rank steps"),
    ("averaged", "R", [not_sent, NO_DDP, add("collective", 11.5, name="all_reduce", **OWN)], "wrong", "sent after the"),
    ("averaged", "R", [add("collective", 3.5, name="all_reduce", **ASYNC)], "ok", "used the mean"),
    ("averaged", "R", [add("collective", 999, name="all_reduce", **OWN | {"is_async": True})], "ok", "used the mean"),
    ("averaged", "L", [put("clip", (1,), values=[None] * 6)], "ok", "used the mean"),
    ("averaged", "L", [put("clip", (1,), values=times(2)), put("step", (1,), gradients=other)], "ok", "used the mean"),
    ("averaged", "L", [put("clip", (1,), values=times(2))], "wrong", "clips its own gradient"),
    ("accumulated", "R", [cleared], "wrong", "5 of 6 backward passes"),
    ("accumulated", "R", [cleared, put("step", local=[None] * 4)], "ok", "none was cleared"),
    ("buffers", "R", [], "unknown", "no model with buffers"),
    ("buffers", "L", [in_calls(buffers={})], "unknown", "no model with buffers"),
    ("buffers", "R", [put("call", end=1, buffers={"mean": 1})], "unknown", "one forward pass only"),
    ("buffers", "R", [MEANS_DIFFER], "wrong", "mean differs"),
    ("buffers", "R", [BUFFERS_DIFFER], "wrong", "mean, var differ between"),
    ("buffers", "R", [BUFFERS_DIFFER, NO_DDP], "unknown", "mean differs between the ranks; whether"),
    ("buffers", "R", [BUFFERS_DIFFER, NO_DDP, OWN_SUM], "wrong", "mean, var differ"),
    ("state", "L", [NO_DDP], "unknown", "not known whether the ranks"),
    ("state", "L", [in_calls((1,), train=False, weights=1)], "wrong", "has other weights on each rank"),
    ("state", "L", [in_calls((1,), train=False, weights=None)], "ok", "the same weights"),
    ("state", "L", [in_calls((1,), train=False, weights=1, model="Ema")], "ok", "the same weights"),
    ("state", "L", [third_rank, in_calls((1,), train=False, weights=1)], "wrong", "not have the same weights on all"),
    ("tokens", "R", [NO_DDP], "unknown", "no gradients are averaged"),
    ("tokens", "R", [put("backward", reduction="other")], "unknown", "how the loss is reduced"),
    ("tokens", "R", [put("backward", (1,), count=4)], "wrong", "(8 and 4 in one pass)"),
    ("tokens", "R", [SUMS_OF_10_AND_5], "wrong", "(10 and 5 in"),
    ("scale", "R", [has(single="x")], "unknown", "nothing to compare it with: x"),
    ("scale", "R", [RATE_3], "wrong", "grows 3-fold from 1 process to 2, the global batch 2-fold"),
    ("scale", "R", [RATE_3, put("call", samples=None)], "ok", "3 times its rate"),
    ("scale", "R", [RATE_3, single(put("call", (0,), samples=None))], "ok", "3 times its rate"),
    ("scale", "R", [RATE_3, put("step", local=[None] * 4)], "wrong", "grows 3-fold"),
    ("scale", "R", [RATE_3, scaled(0.5)], "unknown", "the gradient is 1.5 times"),
    ("scale", "R", [add("rates", 99, number=1, highest=[9.0])], "ok", "1 times its rate"),
    ("scale", "R", [without("rates")], "unknown", "could not be told in one"),
    ("scale", "R", [single(put("rates", (0,), highest=[0.0]))], "unknown", "could not be told in one"),
    ("scale", "R", [single(put("step", (0,), used=[None] * 4))], "unknown", "could not be told in one"),
    ("scale", "R", [put("step", end=1, used=times(2))], "unknown", "could not be told in one"),
    ("scale", "R", [put("backward", reduction="sum", count=None)], "unknown", "could not be told in one"),
    ("scale", "R", [put("backward", reduction="sum")], "unknown", "the gradient is 8 times"),
    ("scale", "R", [scaled(2)], "wrong", "2 times too large"),
    ("scale", "R", [scaled(0.5)], "wrong", "2 times too small"),
    ("scale", "R", [put("rates", highest=[0.025])], "wrong", "2 times too small"),
    ("scale", "R", [put("rates", highest=[0.025]), scaled(2)], "ok", "0.5 times its rate"),
    ("scale", "R", [put("rates", highest=[0.1]), scaled(0.5)], "ok", "2 times its rate"),
    ("validation", "R", [], "unknown", "no DataLoader was read without gradients"),
    ("validation", "L", [], "ok", "no sample is counted twice"),
    ("validation", "L", [without("exhausted")], "unknown", "not read to the end, or its samples cannot"),
    ("validation", "L", [put("batch", samples=None)], "unknown", "not read to the end, or its samples cannot"),
    ("validation", "L", [same("batch", "samples", 7, 8)], "unknown", "4 samples are read on more than one rank, by a"),
    ("validation", "L", [PADDED], "wrong", "DistributedSampler reads 12 of 13 samples twice"),
    ("validation", "L", [PADDED, put("collective", name="all_gather")], "unknown", "12 samples are read twice; what"),
    ("metrics", "L", [own_metric(), NOTHING_SENT], "wrong", "which covers only its own share of the validation data"),
    ("metrics", "L", [own_metric(percent=100), NOTHING_SENT], "wrong", "which covers only its own share"),
    ("metrics", "L", [own_metric(count=4), NOTHING_SENT], "wrong", "which covers only its own share"),
    ("metrics", "L", [own_metric(count=13), NOTHING_SENT], "wrong", "which covers only its own share"),
    ("metrics", "L", [own_metric(count=9), NOTHING_SENT], "unknown", "cannot be told from outside"),
    ("metrics", "L", [own_metric()], "unknown", "cannot be told from outside"),
    ("metrics", "L", [own_metric(), NOTHING_SENT, put("item", gradients=True)], "unknown", "cannot be told from"),
    ("metrics", "L", [own_metric(), NOTHING_SENT, ALL_PRINT], "unknown", "cannot be told from outside"),
    ("metrics", "L", [own_metric(), NOTHING_SENT, SAME_SAMPLES], "unknown", "told"),
    ("metrics", "R", [], "unknown", "rank 0 prints no numbers"),
    ("metrics", "R", [NO_GROUP, PRINTED], "unknown", "rank 0 prints no numbers"),
    ("metrics", "R", [PRINTED], "note", "rank 0 prints the loss of its own batch, 0.777, where the others have 0.2"),
    ("metrics", "R", [PRINTED, put("backward", (0,), end=1, value=0.7), ROUNDED], "unknown", "told"),
    ("metrics", "R", [PRINTED, ROUNDED], "unknown", "cannot be told from outside"),
    ("metrics", "R", [PRINTED, add("print", 6.5, (1,), numbers=[])], "unknown", "cannot be told from outside"),
    ("samples", "L", [put("batch", (1,), samples=None)], "unknown", "the batches differ"),
    ("samples", "L", [same("batch", "samples")], "wrong", "the same samples in the same order"),
    ("samples", "L", [REVERSED], "wrong", "every rank reads all 26 samples in each"),
    ("samples", "L", [REVERSED, put("batch", samples=lambda s: s[:1])], "ok", "none read"),
    ("samples", "L", [same("indices", "indices")], "wrong", "26 samples are read by more than one rank, and 26 of 52"),
    ("samples", "L", [same("indices", "indices"), without("exhausted")], "unknown", "the batches differ"),
    ("samples", "L", [put("batch", samples=[1] * 4), LOADER_OF_ITS_OWN], "unknown", "the batches differ"),
    ("samples", "L", [SHARE, LOADER_OF_ITS_OWN], "wrong", "12 samples are in the shares of two ranks"),
    ("samples", "L", [SHARE, LOADER_OF_ITS_OWN, put("batch", distinctive=False)], "ok", "none read by two ranks"),
    ("samples", "L", [SHARE, LOADER_OF_ITS_OWN, put("batch", (0,), end=1, samples=[5] * 4)], "ok", "none read by two"),
    ("samples", "L", [without("batch")], "ok", "in a whole pass over the data"),
    ("samples", "L", [without("batch"), put("call", distinctive=False)], "unknown", "the batches differ"),
    ("samples", "L", [without("batch"), in_calls((0,), end=1, samples=None)], "unknown", "the batches differ"),
    ("samples", "L", [same("indices", "indices", 0, 1)], "ok", "none read by two ranks"),
    ("samples", "L", [same("indices", "indices"), put("epoch", batch_size=None)], "wrong", "26 samples are read by"),
    ("validation", "L", [without("batch", ranks=(1,))], "unknown", "no DataLoader was read without gradients on every"),
    ("reshuffled", "L", [second_epoch_as_first], "wrong", "the order of the first. Call sampler.set_epoch(epoch)"),
    ("reshuffled", "L", [second_epoch_as_first, LOADER_OF_ITS_OWN], "wrong", "the order of the first. Seed only once."),
    ("reshuffled", "L", [second_epoch_as_first, without("backward", end=7)], "ok", "had another order"),
    ("split", "L", [validates_on_training_data(of_rank=1, ranks=BOTH)], "unknown", "samples of the training are"),
    ("samples", "L", [without("batch"), same("call", "samples", 0, 1), has(single="x")], "unknown", "the batches"),
    ("samples", "L", [without("call", "batch")], "unknown", "what the model was called with"),
    ("split", "L", [NO_DDP], "unknown", "are not known on all ranks"),
    ("split", "L", [in_calls((1,), samples=None)], "unknown", "are not known on all ranks"),
    ("split", "L", [validates_on_training_data(of_rank=1)], "wrong", "4 samples that one rank validates on are"),
    ("split", "L", [validates_on_training_data(of_rank=1, count=1)], "unknown", "samples of the training are"),
    ("split", "L", [validates_on_training_data(of_rank=0)], "unknown", "samples of the training are evaluated"),
    ("draws", "R", [NO_DDP], "unknown", "do not train one model"),
    ("draws", "R", [DRAW], "unknown", "no random numbers were drawn"),
    ("draws", "R", [DRAW, DRAW], "unknown", "whether that is meant is not known"),
    ("draws", "R", [DRAW, DRAW, put("draw", is_array=True)], "wrong", "numpy gives the same numbers on all ranks, in"),
    ("draws", "R", [DRAW, DRAW, put("draw", (1,), state=2)], "ok", "draw different numbers"),
    ("draws", "L", [TORCH_DRAWS, put("fetch", worker=0)], "wrong", "torch's generator gives the"),
    ("draws", "L", [TORCH_DRAWS, put("fetch", (1,), drawn={"torch": 2})], "ok", "different numbers"),
    ("draws", "L", [put("fetch", drawn={"random": 1}), put("fetch", (1,), drawn={})], "ok", "different numbers"),
    ("draws", "L", [put("fetch", end=1, drawn={"random": 1}), without("fetch", begin=1)], "ok", "different numbers"),
    ("draws", "L", [put("fetch", drawn={"random": 1}, gradients=False)], "unknown", "no random numbers"),
    ("draws", "L", [put("fetch", drawn={"random": 1}, frames=())], "wrong", "random gives the same numbers on all"),
    ("draws", "R", [DRAW, DRAW, put("draw", at=0.5)], "unknown", "no random numbers were drawn"),
    ("samples", "L", [LOADER_OF_ITS_OWN], "ok", "none read by two ranks"),
    ("samples", "R", [NO_DDP], "unknown", "do not train one model"),
    ("samples", "R", [same("call", "inputs")], "wrong", "with the same batch, each time"),
    ("samples", "R", [same("call", "inputs"), put("call", constant=True)], "unknown", "the batches differ"),
    ("samples", "R", [put("call", inputs=None)], "unknown", "what the model was called with"),
    ("dropout", "R", [NO_DDP], "unknown", "do not train one model"),
    ("dropout", "R", [same("dropout", "state")], "wrong", "the same masks"),
    ("dropout", "R", [without("dropout")], "unknown", "which was not seen"),
    ("dropout", "R", [without("dropout"), put("call", has_dropout=False)], "unknown", "no dropout was seen"),
    ("reshuffled", "L", [put("epoch", shuffles=False)], "unknown", "no DataLoader that shuffles"),
    ("reshuffled", "L", [put("indices", begin=1, indices=[])], "unknown", "no DataLoader that shuffles"),
    ("resume", "R", [has(second=None)], "unknown", "ran only once"),
    ("resume", "R", [second(has(complete=False))], "unknown", "did not come to its end"),
    ("resume", "R", [without("save")], "unknown", "saved nothing"),
    ("resume", "R", [second(without("step"))], "unknown", "the second run loaded the checkpoint, and made no step"),
    ("resume", "R", [second(without("step", "load"))], "unknown", "the second run made no step"),
    ("resume", "R", [second(without("step", ranks=(1,)))], "unknown", "made no step"),
    ("resume", "R", [second(put("step", weights_before=[None] * 4))], "unknown", "made no step"),
    ("resume", "R", [without("step", ranks=(1,))], "unknown", "made no step"),
    ("resume", "R", [second(OTHER_START)], "wrong", "begins with weights that the first never had"),
    ("resume", "R", [second(put("step", optimizer=1))], "wrong", "begins with weights that the first never had"),
    ("resume", "R", [second(OTHER_START), second(without("load"))], "unknown", "loaded nothing of what the first"),
    ("resume", "R", [second(OTHER_START), second(put("load", path="/x"))], "unknown", "loaded nothing of what the"),
    ("resume", "R", [starts_from(0)], "wrong", "begins with the weights of the beginning"),
    ("resume", "R", [second(without("load"))], "ok", "after step 2 of 6"),
    ("resume", "R", [second(without("load")), second(put("step", rates=[0.01]))], "wrong", "is 0.01, not 0.0375"),
    ("resume", "R", [second(put("step", begin=1, rates=[0.01]))], "wrong", "is 0.01, not 0.025 at its step 2"),
    ("resume", "R", [second(put("step", state=[None] * 4, weights_after=other))], "wrong", "not have the state that"),
    ("resume", "R", [second(OTHER_GRADIENTS), second(in_calls(inputs=0))], "note", "it reads other data than the run"),
    ("resume", "R", [second(OTHER_GRADIENTS)], "note", "other ones on the same data"),
    ("resume", "R", [second(put("step", weights_after=other))], "note", "another step from the same gradients"),
    ("resume", "R", [second(put("step", begin=1, weights_before=other))], "note", "same gradients at its step 2"),
    ("resume", "R", [has(not_set_back="W"), second(without("load"))], "unknown", "W, and the second run loaded"),
    ("resume", "R", [has(not_set_back="W")], "unknown", "the last save may be older"),
    ("resume", "R", [has(not_set_back="W"), starts_from(6)], "unknown", "the rest cannot be compared: W"),
    ("resume", "R", [has(not_set_back="W"), starts_from(6), second(NO_STATE)], "wrong", "without the state of its"),
    ("resume", "R", [has(not_set_back="W"), starts_from(6), second(NO_STATE), NO_STATE], "unknown", "the rest cannot"),
]


def test_what_the_checks_say_of_edited_runs():
    runs = {key: pickle.dumps(audited_run(cases("sound")[name])) for key, name in BASES.items()}
    unexpected = []
    for check, base, edits, status, says in ROWS:
        finding = result_of(CHECKS[check][1], edited(pickle.loads(runs[base]), edits))
        if finding.status != status or says not in f"{finding.text}. {finding.cure}":
            unexpected.append(f"{check}: {status}, {says!r}: but {finding.status}, {finding.text!r}")
    assert not unexpected, "\n".join(unexpected)


def edited(run, edits):
    for edit in edits:
        edit(run)
    return run


def test_names_of_augmentations_are_known():
    names = "augment add_noise crop hflip jitter mixup cutout transform mask corrupt rotate erasing shift rescale"
    assert all(map(AUGMENTS.search, names.split())) and not AUGMENTS.search("init_weights")


def test_names_of_numbers_that_are_compared_are_known():
    names = "val_loss accuracy metric score error ppl perplexity value lowest best".split()
    assert all(BETTER.search(f"under `if {name} < x`") for name in names)
    assert all(BETTER.search(f"under `if x > self.{name}`") for name in ("best", "lowest"))
    assert not BETTER.search("under `if rank == 0`")
