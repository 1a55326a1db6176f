"""Runs an answer to an exercise on several ranks, looks at what it does, and says what it saw.

An answer is a program, and it runs with the rights of whoever calls check(): it can read, change and send whatever that
user can. The limits are there for accidents. Each rank is ended after a few seconds of its own time, 60 s for all of
an answer's jobs; it may write 64 MB to a file or to its output; it works in a folder that is removed, as is all that
it started; no limit on memory. The process that grades runs none of the answer: it reads the ranks' notes as JSON and
what they returned as tensors and plain values (torch.load with weights_only=True).

Whoever grades what others wrote should do it as a user made for it, in a container or on a machine with nothing in it
that matters, and without a network. On Linux, as such a user:

    unshare --net --map-root-user sh -c \
        "ip link set lo up && .venv/bin/python -m ddp_course.grader.check 02.1 answers/02_1.py"
"""
