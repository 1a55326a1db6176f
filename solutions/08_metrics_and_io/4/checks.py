"""08.4: build an evaluator that gives the same, exact numbers at any number of ranks."""

import functools
import math
from numbers import Real

import torch

from ddp_course.grader.vocabulary import Wrong, check, driver_job, expect, expect_few_operations, number, plural

from . import driver

NAMES = ("loss", "perplexity", "tokens")
RELATIVE_ERROR = 1e-5  # the model computes in float32
MAX_OPERATIONS, MAX_BYTES = 2, 4096  # of a rank
LONG_AND_SHORT = [40, 2, 3, 25, 2, 31, 5, 2, 17, 9, 2]
CALLS = {  # world size: {scenario: (lengths of the texts, batch size, whether the model is in training mode)}
    2: {
        "11 texts of 2 to 40 tokens": (LONG_AND_SHORT, 2, True),
        "one text for two ranks": ([6], 4, True),
        "a model in evaluation mode": (LONG_AND_SHORT, 4, False),
        "eight texts of one length": ([9] * 8, 2, True),
    },
    4: {
        "11 texts of 2 to 40 tokens": (LONG_AND_SHORT, 3, True),
        "5 texts, so rank 0 has two": ([20, 2, 6, 3, 11], 8, True),
        "12 texts": ([5, 2, 33] * 4, 1, True),
    },
    1: {"11 texts of 2 to 40 tokens": (LONG_AND_SHORT, 4, True)},
}
JOBS = [driver_job(world, "evaluate", calls, seconds=3.0) for world, calls in CALLS.items()]


@check("every rank returns the same dict, also a rank without samples")
def all_ranks_have_one_dict(case, rank, result):
    metrics = result["result"]
    words = f"a dict with {', '.join(map(str, metrics))}" if isinstance(metrics, dict) else repr(metrics)
    expect(
        isinstance(metrics, dict) and set(metrics) == set(NAMES),
        f"rank {rank} returned {words}; a dict with {', '.join(NAMES)} is expected",
        f"what evaluate returns on rank {rank}",
    )
    for name in NAMES:
        value, on_rank_0 = number(metrics[name]), number(case.results[0]["result"][name])
        expect(isinstance(value, Real), f"on rank {rank}, {name} is {value!r}", "plain numbers are expected")
        expect(
            repr(value) == repr(on_rank_0),  # repr: nan equals nan here
            f"{name} is {value!r} on rank {rank}, {on_rank_0!r} on rank 0",
            "whether every rank divides the same two sums",
        )


@check("loss, perplexity and tokens are those of one process, at 1, 2 and 4 ranks, for any batch size")
def the_numbers_are_exact(case):
    right = one_process(tuple(case.args[0][0]))
    for name in ("tokens", "loss", "perplexity"):
        value = number(case.results[0]["result"][name])
        if not math.isclose(value, right[name], rel_tol=RELATIVE_ERROR):
            raise Wrong(
                f"{name} is {value:.7g}{likeness(case, name, value)}; one process that evaluates text after text gets "
                f"{right[name]:.7g}",
                ADVICE[name],
            )


@check("each text is evaluated once, by one rank, in full batches")
def the_work_is_shared(case):
    lengths, batch_size, _ = case.args[0]
    by_rank = [[forward["rows"] for forward in result["forwards"]] for result in case.results]
    expect(
        sum(map(sum, by_rank)) == len(lengths),
        f"the ranks evaluated {' + '.join(str(sum(batches)) for batches in by_rank)} texts; there are {len(lengths)}",
        "which texts a rank takes: each text belongs to one rank",
    )
    share = math.ceil(len(lengths) / case.world)
    for rank, batches in enumerate(by_rank):
        expect(
            sum(batches) <= share
            and max(batches, default=0) <= batch_size
            and len(batches) <= math.ceil(share / batch_size),
            f"rank {rank} evaluated {sum(batches)} texts in batches of {batches}; its share is {share} at most, in "
            f"batches of {batch_size}",
            "how the texts are dealt out, and how a rank cuts its texts into batches",
        )


@check(lambda started: f"{plural(max(started), 'collective')} in all")
def few_collectives(case):
    look_at = "which sums have to be reduced? All of them fit into one message, after the last batch"
    return expect_few_operations(case, MAX_OPERATIONS, MAX_BYTES, look_at)


@check("no gradients are recorded, and every module has its mode back; gradients and samples stay")
def the_model_is_as_it_was(case, rank, result):
    expect(
        not any(forward["gradients"] for forward in result["forwards"]),
        f"on rank {rank} the forward pass recorded what backward would need",
        "torch.no_grad() or torch.inference_mode()",
    )
    expect(
        result["gradients_enabled_after"],
        f"on rank {rank} no gradients were recorded any more after `evaluate` had returned",
        "what switches the recording off, and what switches it on again?",
    )
    for key, change, look_at in (
        ("requires_grad", "other parameters of the model train than before", "what requires_grad is set to"),
        ("gradient_unchanged", "the gradient that the model had accumulated is gone", "what clears .grad"),
        ("samples_unchanged", "the list of samples has changed", "what sorts or fills it in place"),
    ):
        expect(result[key], f"on rank {rank}, after `evaluate` {change}", look_at)
    modes = zip(driver.PARTS, result["modes_before"], result["modes_after"], strict=True)
    changed = [part for part, old, new in modes if old != new]
    expect(
        not changed,
        f"on rank {rank} {' and '.join(changed)} came back in another mode than before",
        "model.train() and model.eval() give all submodules one mode: which of them were in the other one before?",
    )


ADVICE = {
    "tokens": "what counts as a token: each text of n tokens has n - 1 targets, and padding has none",
    "loss": "what is added up and divided by, for texts of different lengths; where the padding is; the model's mode",
    "perplexity": "the mean of which exp is taken: it is that over the targets of all ranks",
}


@functools.cache
def one_process(lengths):
    """loss, perplexity and tokens of one process that evaluates text after text."""
    sums, counts = sums_and_counts(lengths)
    loss = math.fsum(sums) / sum(counts)
    return {"loss": loss, "perplexity": math.exp(loss), "tokens": sum(counts)}


def sums_and_counts(lengths):
    """The summed losses of each text, computed in float64, and the number of targets of each."""
    table = driver.Model().table.detach().double()
    sums = []
    for text in driver.texts(lengths):
        logits = table[text[:-1]].cumsum(dim=0) / torch.arange(1, len(text), dtype=torch.float64)[:, None]
        sums.append(torch.nn.functional.cross_entropy(logits, text[1:], reduction="sum").item())
    return sums, [length - 1 for length in lengths]


def likeness(case, name, value):
    """A likely cause of the wrong `value`, in words that follow it; "" if no known mistake gives it."""
    sums, counts = sums_and_counts(case.args[0][0])
    text_means = [total / count for total, count in zip(sums, counts, strict=True)]
    shares = [slice(rank, None, case.world) for rank in range(case.world)]
    rank_means = [sum(sums[share]) / sum(counts[share]) for share in shares if counts[share]]
    mistakes = {
        "loss": {
            "the mean of the texts' means": sum(text_means) / len(text_means),
            "the mean of the ranks' means": sum(rank_means) / len(rank_means),
            "the sum over tokens by the number of texts": sum(sums) / len(sums),
        },
        "perplexity": {
            "the mean of the texts' perplexities": sum(map(math.exp, text_means)) / len(text_means),
            "the mean of the ranks' perplexities": sum(map(math.exp, rank_means)) / len(rank_means),
        },
        "tokens": {"the tokens of the texts, targets or not": sum(counts) + len(counts)},
    }[name]
    close = (words for words, mistaken_value in mistakes.items() if math.isclose(value, mistaken_value, rel_tol=1e-4))
    return next((f", {words}" for words in close), "")
