"""Run an answer to an exercise on several ranks, and judge what it did.

An answer is a program that runs with the rights of the user who calls check(): it can read, change and send whatever
that user can. The limits guard against accidents only. The ranks of a job are ended after a few seconds, and all jobs
of an answer share 60 s, on a clock that does not count the time spent waiting for a core. A rank may write 64 MB to a
file or to its output. It works in a folder that is removed afterwards; processes that it started are ended. Its memory
is not limited. The process that grades runs no code of the answer: it reads the ranks' notes as JSON, and what they
returned as tensors and plain values (torch.load with weights_only=True).

To grade the answers of others, use a user account made for it, in a container or on a machine with nothing in it that
matters, and without a network. On Linux, as that user:

    unshare --net --map-root-user sh -c \
        "ip link set lo up && .venv/bin/python -m ddp_course.grader.check 02.1 answers/02_1.py"
"""
