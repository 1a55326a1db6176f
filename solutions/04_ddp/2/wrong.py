"""Wrong and right answers to question 04.2; ddp_course/authoring/answers.py says how to read them."""

from ddp_course.authoring.answers import RightAnswer, WrongAnswer

ANSWERS = (
    WrongAnswer(
        "any_error_on_any_rank", "takes a lost connection on the other rank for a hidden crash",
        check="the_detector_tells_them_apart",
        says="given a barrier at the end of a good run, hides_a_crash returned True", edit="""
        -        came_out = error is crash
        +        came_out = True
             if raised_at is None:
        -        return False  # another rank crashed
        +        return came_out
    """),
    WrongAnswer(
        "raises_a_copy", "raises a new exception with the type and text of the old one",
        check="the_crash_comes_out", says="it is not the one that train had raised",
        on="clean_up_in_finally", edit="""
             dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_seconds))
        +    crash = None
        @@
        -    finally:
        -        dist.destroy_process_group()
        +    except Exception as error:
        +        crash = type(error)(str(error))
        +    dist.destroy_process_group()
        +    if crash:
        +        raise crash
    """),
    WrongAnswer(
        "the_others_stay_calm", "takes a lost connection for the end of the training",
        check="the_other_ranks_fail_too",
        says="run returned on rank 0 after 2 of 5 steps as if it had finished",
        on="clean_up_in_finally", edit="""
        -        dist.barrier()  # only where all went well
        +    except RuntimeError as error:
        +        print("another rank has gone:", error)
    """),
    WrongAnswer(
        "tries_again", "starts the training a second time after an error",
        check="a_good_run_ends_well", says="called train with [1, 1]; it should call it once, with 1",
        on="clean_up_in_finally", edit="""
        -        train(dist.get_rank())
        -        dist.barrier()  # only where all went well
        +        try:
        +            train(dist.get_rank())
        +        except ValueError:
        +            train(dist.get_rank())
    """),
    WrongAnswer(
        "unrepaired", "has the detector, and the barrier in `finally` as given",
        check="the_crash_comes_out", says="RuntimeError came out of run on rank 1",
        on="clean_up_in_finally", edit="""
        +    finally:
                 dist.barrier()  # only where all went well
        -    finally:
    """),
    WrongAnswer(
        "a_timeout_of_its_own", "joins the group with torch's timeout of half an hour",
        check="a_good_run_ends_well", says="joined the process group with a timeout of 1800 s on rank 0; it was handed 3 s",
        edit="""
        -    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_seconds))
        +    dist.init_process_group("gloo")
    """),
    WrongAnswer(
        "catches_exceptions_only", "catches Exception in the detector, which SystemExit is not",
        state="crashed", check="raises", says="raised UncaughtExit: the SystemExit of this version of run", edit="""
        -    except BaseException as error:  # this function catches whatever run raises
        +    except Exception as error:
    """),
    WrongAnswer(
        "expects_its_own_error", "catches in the detector only the type of error that it raises itself",
        check="does not end", says="rank 0 was in all_reduce", edit="""
        -    except BaseException as error:  # this function catches whatever run raises
        +    except ValueError as error:
    """),
    WrongAnswer(
        "allows_the_whole_timeout", "takes an exception for hidden only after the whole timeout",
        check="the_detector_tells_them_apart", says="given the error held back for six tenths of the timeout, hides_a_crash",
        look="how long is too long", edit="""
        -    return not came_out or time.monotonic() - raised_at > timeout_seconds / 2
        +    return not came_out or time.monotonic() - raised_at > timeout_seconds
    """),
    RightAnswer(
        "clean_up_in_finally", "leaves the group in `finally`, which with gloo waits for no other rank; a barrier before",
        edit="""
        -    train(dist.get_rank())
        -    dist.destroy_process_group()  # after a crash the process ends, and its connections close
        +    try:
        +        train(dist.get_rank())
        +        dist.barrier()  # only where all went well
        +    finally:
        +        dist.destroy_process_group()
    """),
    RightAnswer(
        "a_context_manager", "a context manager that cleans up without a barrier",
        text="""
        import contextlib
        import datetime
        import time

        import torch
        import torch.distributed as dist


        @contextlib.contextmanager
        def process_group(seconds):
            dist.init_process_group(backend="gloo", timeout=datetime.timedelta(seconds=seconds))
            try:
                yield dist.get_rank()
            except BaseException as error:
                print(f"rank {dist.get_rank()}: {error!r}", flush=True)
                raise
            finally:
                dist.destroy_process_group()


        def run(train, timeout_seconds):
            with process_group(timeout_seconds) as rank:
                train(rank)


        def hides_a_crash(run, timeout_seconds):
            start = end = None

            def train(rank):
                nonlocal start
                dist.barrier()
                if rank == 1:
                    start = time.monotonic()
                    raise AssertionError("boom")
                while True:
                    dist.all_reduce(torch.zeros(1000))

            with contextlib.suppress(BaseException):
                try:
                    run(train, timeout_seconds)
                except AssertionError:
                    end = time.monotonic()
            if start is None:
                return False
            return end is None or end - start >= timeout_seconds / 2
    """),
    RightAnswer(
        "leaves_the_clean_up_to_the_end_of_the_process",
        "no clean-up after a crash; the detector's other ranks wait in a recv",
        text="""
        import time
        from datetime import timedelta

        import torch
        import torch.distributed as dist


        def hides_a_crash(run, timeout_seconds):
            times = {}

            def train(rank):
                if rank == 0:
                    times["raised"] = time.perf_counter()
                    raise KeyError("gone")
                dist.recv(torch.empty(1), src=0)

            try:
                run(train, timeout_seconds)
            except KeyError:
                times["seen"] = time.perf_counter()
            except BaseException as error:
                print(type(error))
            late = times.get("seen", float("inf")) - times.get("raised", float("inf"))
            return "raised" in times and not late < 0.5 * timeout_seconds


        def run(train, timeout_seconds):
            dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_seconds))
            train(dist.get_rank())
            dist.barrier()
            dist.destroy_process_group()
    """),
)
