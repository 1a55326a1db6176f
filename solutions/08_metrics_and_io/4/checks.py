"""08.4: build an evaluator that gives the same, exact numbers at any number of ranks."""

import functools
import math
from numbers import Real

import torch

from ddp_course.grader.answer_record import Call, Job, cases
from ddp_course.grader.messages import assert_few_collectives
from ddp_course.grader.verdict import Wrong
from ddp_course.grader.vocabulary import number

from . import driver

NAMES = ("loss", "perplexity", "tokens")
RELATIVE_ERROR = 1e-5  # the model computes in float32
MOST_COLLECTIVES, SMALL_MESSAGE = 2, 4096
SECONDS = 3.0


def job(world, *settings):
    """settings: (what is special, lengths of the texts, batch size, whether the model is in training mode)."""
    calls = tuple(Call([tuple(arguments)] * world, given) for given, *arguments in settings)
    return Job(world, "evaluate", calls, SECONDS, driver=True)


LONG_AND_SHORT = [40, 2, 3, 25, 2, 31, 5, 2, 17, 9, 2]
JOBS = [
    job(
        2,
        ("11 texts of 2 to 40 tokens", LONG_AND_SHORT, 2, True),
        ("one text for two ranks", [6], 4, True),
        ("a model in evaluation mode", LONG_AND_SHORT, 4, False),
        ("eight texts of one length", [9] * 8, 2, True),
    ),
    job(
        4,
        ("11 texts of 2 to 40 tokens", LONG_AND_SHORT, 3, True),
        ("5 texts, so rank 0 has two", [20, 2, 6, 3, 11], 8, True),
        ("12 texts", [5, 2, 33] * 4, 1, True),
    ),
    job(1, ("11 texts of 2 to 40 tokens", LONG_AND_SHORT, 4, True)),
]


def all_ranks_have_one_dict(records):
    """Every rank returns the same dict, to the last bit: loss, perplexity and tokens."""
    for case in cases(records):
        for rank, result in enumerate(returned(case)):
            if not isinstance(result, dict) or set(result) != set(NAMES):
                found = f"a dict with {', '.join(map(str, result))}" if isinstance(result, dict) else repr(result)
                raise Wrong(
                    f"{case.where}rank {rank} returned {found}; a dict with {', '.join(NAMES)} is expected",
                    f"what evaluate returns on rank {rank}",
                )
            for name in NAMES:
                value, on_rank_0 = number(result[name]), number(returned(case)[0][name])
                if not isinstance(value, Real):
                    raise Wrong(f"{case.where}on rank {rank}, {name} is {value!r}", "plain numbers are expected")
                if repr(value) != repr(on_rank_0):  # repr: nan equals nan here
                    raise Wrong(
                        f"{case.where}{name} is {value!r} on rank {rank}, {on_rank_0!r} on rank 0",
                        "whether every rank divides the same two sums",
                    )
    return "every rank returns the same dict, also a rank without samples"


def the_numbers_are_exact(records):
    """They are those of one process that evaluates text after text, at 1, 2 and 4 ranks and for any batch size."""
    for case in cases(records):
        right = one_by_one(tuple(case.args[0][0]))
        for name in ("tokens", "loss", "perplexity"):
            value = number(returned(case)[0][name])
            if not math.isclose(value, right[name], rel_tol=RELATIVE_ERROR):
                raise Wrong(
                    f"{case.where}{name} is {value:.7g}{likeness(case, name, value)}; one process that evaluates text "
                    f"after text gets {right[name]:.7g}",
                    ADVICE[name],
                )
    return "loss, perplexity and tokens are those of one process, at 1, 2 and 4 ranks, for any batch size"


def the_work_is_shared(records):
    """Each text is evaluated once, by one rank, in batches of up to batch_size; no rank gets more than its share."""
    for case in cases(records):
        lengths, batch_size, _ = case.args[0]
        rows = [[forward["rows"] for forward in one["forwards"]] for one in case.results]
        if sum(map(sum, rows)) != len(lengths):
            raise Wrong(
                f"{case.where}the ranks evaluated {' + '.join(str(sum(mine)) for mine in rows)} texts; there are "
                f"{len(lengths)}",
                "which texts a rank takes: each text belongs to one rank",
            )
        share = -(-len(lengths) // case.world)
        for rank, mine in enumerate(rows):
            if sum(mine) > share or max(mine, default=0) > batch_size or len(mine) > -(-share // batch_size):
                raise Wrong(
                    f"{case.where}rank {rank} evaluated {sum(mine)} texts in batches of {mine}; its share is {share} "
                    f"at most, in batches of {batch_size}",
                    "how the texts are dealt out, and how a rank cuts its own into batches",
                )
    return "each text is evaluated once, by one rank, in full batches"


def few_messages(records):
    """At most two collectives in all, however many batches there are."""
    started = assert_few_collectives(
        cases(records),
        MOST_COLLECTIVES,
        SMALL_MESSAGE,
        "which sums have to travel? All of them fit into one message, after the last batch",
    )
    return f"{started} in all"


def the_model_is_as_it_was(records):
    """No gradients are recorded; afterwards they are again, and each module of the model has the mode it had."""
    for case in cases(records):
        for rank, one in enumerate(case.results):
            if any(forward["gradients"] for forward in one["forwards"]):
                raise Wrong(
                    f"{case.where}on rank {rank} the forward pass recorded what backward would need",
                    "torch.no_grad() or torch.inference_mode()",
                )
            if not one["gradients_after"]:
                raise Wrong(
                    f"{case.where}on rank {rank} no gradients were recorded any more after `evaluate` had returned",
                    "what switches the recording off, and what switches it on again?",
                )
            for what, stays, look in (
                ("the parameters of the model do not train any more", one["trains"], "what requires_grad is set to"),
                ("the gradient that the model had accumulated is gone", one["gradient_stays"], "what clears .grad"),
                ("the list of samples is another one", one["samples_stay"], "what sorts or fills it in place"),
            ):
                if not stays:
                    raise Wrong(f"{case.where}on rank {rank}, after `evaluate` {what}", look)
            modules = zip(driver.PARTS, one["before"], one["after"], strict=True)
            changed = [name for name, before, after in modules if before != after]
            if changed:
                raise Wrong(
                    f"{case.where}on rank {rank} {' and '.join(changed)} came back in another mode than before",
                    "model.train() sets all submodules, whatever they were; and what if it was not training?",
                )
    return "no gradients are recorded, and every module has its mode back; gradients and samples stay"


CHECKS = [all_ranks_have_one_dict, the_numbers_are_exact, the_work_is_shared, few_messages, the_model_is_as_it_was]
ADVICE = {
    "tokens": "what counts as a token: each text of n tokens has n - 1 targets, and padding has none",
    "loss": "what is added up and what it is divided by, for a short text beside a long one; and the model's mode",
    "perplexity": "exp of the mean over all tokens is no mean of anything the ranks have",
}


@functools.cache
def one_by_one(lengths):
    """loss, perplexity and tokens as one process gets them, text by text."""
    sums, counts = per_text(lengths)
    loss = math.fsum(sums) / sum(counts)
    return {"loss": loss, "perplexity": math.exp(loss), "tokens": sum(counts)}


def per_text(lengths):
    table = driver.Model().table.detach().double()
    sums = []
    for text in driver.texts(lengths):
        seen = table[text[:-1]].cumsum(dim=0) / torch.arange(1, len(text), dtype=torch.float64)[:, None]
        sums.append(torch.nn.functional.cross_entropy(seen, text[1:], reduction="sum").item())
    return sums, [length - 1 for length in lengths]


def returned(case):
    """What the learner's evaluate returned, by rank."""
    return [one["result"] for one in case.results]


def likeness(case, name, value):
    """What a wrong number looks like, in words that can be put behind it."""
    sums, counts = per_text(tuple(case.args[0][0]))
    means = [a / b for a, b in zip(sums, counts, strict=True)]
    by_rank = [slice(rank, None, case.world) for rank in range(case.world)]
    of_ranks = [sum(sums[mine]) / sum(counts[mine]) for mine in by_rank if counts[mine]]
    likes = {
        "loss": {
            "the mean of the texts' means": sum(means) / len(means),
            "the mean of the ranks' means": sum(of_ranks) / len(of_ranks),
            "the sum over tokens by the number of texts": sum(sums) / len(sums),
        },
        "perplexity": {
            "the mean of the texts' perplexities": sum(map(math.exp, means)) / len(means),
            "the mean of the ranks' perplexities": sum(map(math.exp, of_ranks)) / len(of_ranks),
        },
        "tokens": {"the tokens of the texts, targets or not": sum(counts) + len(counts)},
    }[name]
    return next((f", {text}" for text, like in likes.items() if math.isclose(value, like, rel_tol=1e-4)), "")
