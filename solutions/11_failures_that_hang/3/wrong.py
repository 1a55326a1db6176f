"""Wrong and right answers to question 11.3; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "a_barrier_before", "adds a barrier, and rank 0 never comes to the broadcast",
        check="does not end", says="no end, and nothing moves", on="given", edit="""
        +    dist.barrier()
             result = [work() if dist.get_rank() == 0 else None]
    """),
    WrongAnswer(
        "except_what_it_knows", "catches exit and Ctrl-C as well, and no other error that is not an Exception",
        check="does not end", says="which is no Exception and has no text): no end, and nothing moves", edit="""
        -        except BaseException as raised:  # also SystemExit: the others wait for it as well
        +        except (Exception, SystemExit, KeyboardInterrupt) as raised:
    """),
    WrongAnswer(
        "sends_the_error", "takes every error object for a failure, also one that was returned",
        check="results_arrive", says="(work returns an error and raises none): rank 0 raised", edit="""
        -            error, failure = raised, f"{type(raised).__name__}: {raised}"
        -    outcome = [result, failure]
        -    dist.broadcast_object_list(outcome, src=0)
        -    result, failure = outcome
        -    if error is not None:
        -        raise error
        -    if failure is not None:
        -        raise RuntimeError(f"rank 0 failed: {failure}")
        +            result = error = raised
        +    outcome = [result]
        +    dist.broadcast_object_list(outcome, src=0)
        +    result = outcome[0]
        +    if isinstance(result, BaseException):
        +        raise result if dist.get_rank() == 0 else RuntimeError(f"rank 0 failed: {type(result).__name__}: {result}")
    """),
    WrongAnswer(
        "none_means_failed", "takes a result of None for a failure",
        check="results_arrive", says="(the result is None): rank 1 raised", edit="""
        -    if failure is not None:
        -        raise RuntimeError(f"rank 0 failed: {failure}")
        +    if result is None and dist.get_rank() != 0:
        +        raise RuntimeError(f"rank 0 failed: {failure}")
    """),
    WrongAnswer(
        "a_text_means_failed", "takes an error without a text for a result",
        check="failures_arrive", says="has no text): rank 1 returned None, after work had failed", edit="""
        -            error, failure = raised, f"{type(raised).__name__}: {raised}"
        +            error, failure = raised, str(raised) and f"{type(raised).__name__}: {raised}"
        @@
        -    if failure is not None:
        +    if failure:
    """),
    WrongAnswer(
        "every_rank_works", "lets every rank call work, so that no rank has to wait",
        check="work_runs_once", says="rank 1 called work 1 times", edit="""
        -    if dist.get_rank() == 0:
        +    if True:
    """),
    WrongAnswer(
        "repr_of_the_error", "sends repr(error), in which a file's error lacks the name of the file",
        check="failures_arrive", says="No such file or directory: 'settings.json'", look="the log of rank 7", edit="""
        -            error, failure = raised, f"{type(raised).__name__}: {raised}"
        +            error, failure = raised, repr(raised)
    """),
    RightAnswer(
        "the_traceback", "every rank gathers from all, and sends the whole traceback", edit="""
         import json
        +import traceback
        @@
        -            error, failure = raised, f"{type(raised).__name__}: {raised}"
        -    outcome = [result, failure]
        -    dist.broadcast_object_list(outcome, src=0)
        -    result, failure = outcome
        +            error, failure = raised, "".join(traceback.format_exception(raised))
        +    outcomes = [None] * dist.get_world_size()
        +    dist.all_gather_object(outcomes, [result, failure])
        +    result, failure = outcomes[0]
    """),
    RightAnswer(
        "a_flag_first", "broadcasts whether work went well, and then the result or the text", edit="""
        -    outcome = [result, failure]
        -    dist.broadcast_object_list(outcome, src=0)
        -    result, failure = outcome
        -    if error is not None:
        -        raise error
        -    if failure is not None:
        -        raise RuntimeError(f"rank 0 failed: {failure}")
        -    return result
        +    well = [failure is None]
        +    dist.broadcast_object_list(well, src=0)
        +    second = [result if well[0] else failure]
        +    dist.broadcast_object_list(second, src=0)
        +    if error is not None:
        +        raise error
        +    if not well[0]:
        +        raise ValueError(f"what rank 0 says: {second[0]}")
        +    return second[0]
    """),
)
