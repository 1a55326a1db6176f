"""Draw what the processes of a run did over time, restarts included; one lane per rank, or per node."""

from itertools import pairwise

from matplotlib.patches import Patch

from ddp_course.base.errors import InputError
from ddp_course.lab.figures.labels import name_rows
from ddp_course.lab.figures.style import ALARM, DARK, HATCHED, HIGHLIGHT, NEUTRAL, PALE, new_figure

LOOKS = {  # of the bars of a state
    "start": {"label": "Python, torch, rendezvous", "facecolor": PALE, **HATCHED},
    "load": {"label": "loading", "facecolor": NEUTRAL},
    "step": {"label": "steps", "facecolor": "#9CCBEB"},
    "again": {"label": "steps again", "facecolor": HIGHLIGHT},
    "save": {"label": "saving", "facecolor": DARK},
}
MARKED = ("killed", "SIGTERM")


def lives(events: list[dict], title: str):
    """A bar for each state of each lane, from the event that begins it to the lane's next event.

    events: in order of time, dicts with "time" in seconds, "lane", "what" and "step". As "what", "start", "load",
        "step" and "save" begin a state, "killed" and "exit" end the process, and others, such as "saved", leave the
        state as it is. "killed" and "SIGTERM" are marked. A step that the lane has done before has its own colour.
    Between two processes a lane is empty.
    Raises InputError if there are no events.
    """
    if not events:
        raise InputError("lives needs at least one event, got none.")
    lanes = {}
    for event in sorted(events, key=lambda event: str(event["lane"])):
        lanes.setdefault(str(event["lane"]), []).append(event)
    figure, axes = new_figure(title, 1.1 + 0.5 * len(lanes))
    zero, shown = events[0]["time"], set()
    for row, lane_events in enumerate(lanes.values()):
        state, highest_step = None, -1
        for event, following in pairwise([*lane_events, None]):
            what, begin = event["what"], event["time"] - zero
            if what == "step":
                state = "again" if event["step"] <= highest_step else "step"
                highest_step = max(highest_step, event["step"])
            elif what in LOOKS:
                state = what
            elif what in ("killed", "exit"):
                state = None
            if what in MARKED:
                axes.plot([begin] * 2, [row - 0.35, row + 0.35], color=ALARM, linewidth=2)
                above = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center", "va": "bottom"}
                axes.annotate(what, (begin, row - 0.35), fontsize=8, **above)
            # Before a "start" without an "exit" the process failed, at an unknown time.
            if state and following and following["what"] != "start":
                shown.add(state)
                span = (begin, following["time"] - event["time"])
                axes.broken_barh([span], (row - 0.35, 0.7), linewidth=0, **LOOKS[state])
    # Room on top for what marks the events of the first lane.
    name_rows(axes, [f"rank {lane}" if lane.isdigit() else f"node {lane}" for lane in lanes], top=-0.75)
    axes.set_xlabel("seconds since the first process", loc="left")
    handles = [Patch(linewidth=0, **look) for state, look in LOOKS.items() if state in shown]
    figure.legend(handles=handles, ncols=5, loc="outside lower left", fontsize=8)
    return figure
