"""Inside a rank, for 05.3: run, and how much is built for a training that stops after its first batch."""

import sys


def drive(run, samples, batch_size, epoch, rank, world_size):
    """The result of `run`; under "built for one" how many batches were built when the first was handed out."""
    result = run(samples, batch_size, epoch, rank, world_size)
    answer = sys.modules["answer"]
    corpus = answer.Corpus(samples)
    handed_out = next(iter(answer.batches(corpus, batch_size, epoch, rank, world_size)), None)
    if isinstance(result, dict) and handed_out is not None:
        result["built for one"] = corpus.built
    return result
