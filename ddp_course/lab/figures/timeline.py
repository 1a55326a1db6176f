"""Timelines: what each rank did, and when; one lane per rank."""

from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch

from ddp_course.base.errors import InputError
from ddp_course.base.quantity import is_number
from ddp_course.lab.figures.labels import label_inside, name_rows, text_width
from ddp_course.lab.figures.style import DARK, HATCHED, MUTED, PALE, ink_on, new_figure, rank_colour

KINDS = ("compute", "communication", "idle")
LANE = 0.46  # inches of a lane
LABEL = 8  # points
SPARSE = 40  # the most events of one kind in a lane for which each is drawn at least one pixel wide
# (least latest time in seconds, factor, unit); the first that fits counts
SCALES = [(2.0, 1.0, "seconds"), (2e-3, 1e3, "milliseconds"), (0.0, 1e6, "microseconds")]


def _events_by_rank(group: str, source) -> dict[int, list[dict]]:
    """{rank: events}, sorted by rank and start, times shifted so that the group's earliest start is 0.

    source: see `rank_lanes`. Raises InputError for a malformed event, or if there are none.
    """
    results = getattr(source, "results", source)
    lanes = {}
    for rank, result in results.items():
        events = result.get("events") if isinstance(result, dict) else result
        if not isinstance(events, list):
            raise InputError(f"Rank {rank} of {group!r} has no list of events, got {type(events).__name__}.")
        for event in events:
            times = [event.get("start"), event.get("end")]
            if event.get("kind") not in KINDS or not all(map(is_number, times)) or times[0] > times[1]:
                raise InputError(
                    f"Rank {rank} of {group!r}: an event has a name, start <= end in seconds and a kind of "
                    f"{', '.join(KINDS)}; got {event}."
                )
        lanes[rank] = sorted(events, key=lambda event: event["start"])
    starts = [event["start"] for events in lanes.values() for event in events]
    if not starts:
        raise InputError(f"The timeline {group!r} has no events on any rank; it needs at least one.")
    zero = min(starts)
    return {
        rank: [{**event, "start": event["start"] - zero, "end": event["end"] - zero} for event in lanes[rank]]
        for rank in sorted(lanes)
    }


def _overlaps(events: list[dict]) -> bool:
    """Whether communication overlaps computation on this rank."""
    messages = [event for event in events if event["kind"] == "communication"]
    compute = [event for event in events if event["kind"] == "compute"]
    return any(m["start"] < c["end"] and c["start"] < m["end"] for m in messages for c in compute)


def _colour(rank: int, kind: str) -> str:
    return {"compute": rank_colour(rank), "communication": DARK, "idle": PALE}[kind]


def rank_lanes(lanes: dict, title: str):
    """A timeline with one lane per rank; each group's earliest event is at 0, and all groups share the time axis.

    lanes: name of the group -> a run whose `results[rank]["events"]` are the events of a rank,
        or a dict of rank -> events. An event is {"name", "start", "end", "kind"}, times in seconds,
        kind "compute" (drawn in the rank's colour), "communication" (dark) or "idle" (hatched).
        Ranks of one group must share a clock.
    If communication overlaps computation on any rank, all lanes are split: computation above, communication below.
    Raises InputError if there is nothing to draw or an event is malformed.
    """
    if not lanes:
        raise InputError("rank_lanes needs at least one group of lanes, got none.")
    groups = {name: _events_by_rank(name, source) for name, source in lanes.items()}
    split = any(_overlaps(events) for ranks in groups.values() for events in ranks.values())
    latest = max(e["end"] for ranks in groups.values() for events in ranks.values() for e in events)
    scale, unit = next((scale, unit) for least_latest, scale, unit in SCALES if latest >= least_latest)

    counts = [len(ranks) for ranks in groups.values()]
    figure, grid = new_figure(
        title,
        0.65 + LANE * sum(counts) + 0.3 * len(groups),
        nrows=len(groups),
        sharex=True,
        squeeze=False,
        gridspec_kw={"height_ratios": counts},
    )
    panels = list(grid[:, 0])
    panels[-1].set_xlim(0, max(latest * scale, 1e-9))
    panels[-1].set_xlabel(f"{unit} since the first event", loc="left")
    for axes, (group, ranks) in zip(panels, groups.items(), strict=True):
        axes.set_title(str(group), parse_math=False)
        name_rows(axes, [f"rank {rank}" for rank in ranks])
        axes.tick_params(axis="x", labelbottom=axes is panels[-1], length=3 if axes is panels[-1] else 0)
    _legend(figure, groups)
    figure.draw_without_rendering()  # settles the layout, so that the width of a pixel is known
    for axes, ranks in zip(panels, groups.values(), strict=True):
        for row, (rank, events) in enumerate(ranks.items()):
            _draw_lane(figure, axes, row, rank, events, scale, split)
    return figure


def _draw_lane(figure, axes, row: int, rank: int, events: list[dict], scale: float, split: bool) -> None:
    pixel = (axes.get_xlim()[1] - axes.get_xlim()[0]) / axes.get_window_extent().width
    widths = {name: text_width(figure, name, LABEL) for name in {event["name"] for event in events}}
    for kind in ("idle", "compute", "communication"):
        events_of_kind = [event for event in events if event["kind"] == kind]
        if not events_of_kind:
            continue
        top, height = -0.4, 0.8
        if split:
            top, height = (0.1, 0.3) if kind == "communication" else (-0.4, 0.48)
        colour = _colour(rank, kind)
        # A rare event thinner than a pixel would vanish; in a dense lane, widening all of them would mislead.
        least_width = pixel if len(events_of_kind) <= SPARSE else 0
        spans = [(e["start"] * scale, max((e["end"] - e["start"]) * scale, least_width)) for e in events_of_kind]
        # A white edge separates neighbours, but would cover a bar of a few pixels.
        edge_widths = [0.7 if width > 4 * pixel else 0 for _, width in spans]
        edge = HATCHED if kind == "idle" else {"edgecolor": "white"}
        axes.broken_barh(spans, (row + top, height), facecolor=colour, linewidth=edge_widths, **edge)
        for event, (start, width) in zip(events_of_kind, spans, strict=True):
            if widths[event["name"]] + 6 <= width / pixel:
                ink = MUTED if kind == "idle" else ink_on(colour)
                back = {"facecolor": PALE, "edgecolor": "none", "pad": 1} if kind == "idle" else None
                label_inside(axes, start + width / 2, row + top + height / 2, event["name"], LABEL, ink, bbox=back)


def _legend(figure, groups: dict) -> None:
    """A legend of the kinds that occur; that of computation shows the colours of the first four ranks."""
    ranks = sorted({rank for lanes in groups.values() for rank in lanes})
    kinds = {event["kind"] for lanes in groups.values() for events in lanes.values() for event in events}
    handles, labels = [], []
    for kind in KINDS:
        if kind not in kinds:
            continue
        hatch = HATCHED if kind == "idle" else {}
        patches = [Patch(facecolor=_colour(rank, kind), **hatch) for rank in (ranks[:4] if kind == "compute" else [0])]
        handles.append(tuple(patches))
        labels.append("waits" if kind == "idle" else kind)
    handlers = {tuple: HandlerTuple(ndivide=None, pad=0)}
    # In the corner next to the axis label, outside the layout, so that it takes no row of its own.
    figure.legend(handles, labels, handler_map=handlers, ncols=3, loc="lower right", fontsize=8.5)
