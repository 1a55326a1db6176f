"""The first page's animation: a step of two ranks that predict computes, and losses that notebook 04 recorded.

CSS in the page lets its parts appear one after the other, without a script. It can be paused, and does not move if the
reader's system asks for reduced motion.
"""

import json
import re
from pathlib import Path

from bucket_queue import backward_by_bucket
from sphinx.application import Sphinx

from ddp_course.lab.figures.style import NEUTRAL, RANK_COLOURS, ink_on
from ddp_course.plan.flags import predict_parser
from ddp_course.plan.prediction_report import ddp_from

NOTEBOOK = Path(__file__).parents[1] / "notebooks/04_ddp.ipynb"
JOB = "--model gpt2 --gpus 2 --gpus-per-node 1 --link 200Gb --bucket-mib 100 --micro-batch 16"
STEP_SECONDS = 2  # of the picture, per recorded loss
LEFT, WIDTH = 52, 480
TOP, BOTTOM = 118, 232  # of the loss curve
STILL = """\
@media (prefers-reduced-motion: reduce) {
.first-picture * { animation: none !important }
.first-picture label { display: none }
}"""
PAGE = """\
```{{raw}} html
<figure class="first-picture">
<svg role="img" aria-label="{text}" viewBox="0 0 {width} 262"><style>{style}</style>{drawn}</svg>
<label><input type="checkbox"> Pause</label>
<figcaption>{text}</figcaption>
</figure>
```
"""


def recorded_losses() -> dict[int, dict[int, float]]:
    """{processes: {step: loss}}, from the committed output of notebook 04."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    [cell] = [cell for cell in cells if cell["id"] == "run-both"]
    text = "".join(line for output in cell["outputs"] for line in output.get("text", ()))
    _, *runs = re.split(r"torchrun .*--nproc-per-node=(\d+)", text)
    return {
        int(processes): {int(step): float(loss) for step, loss in re.findall(r"step (\d+)\s+loss ([\d.]+)", lines)}
        for processes, lines in zip(runs[::2], runs[1::2], strict=True)
    }


class Drawing:
    """SVG elements and the CSS rules by which they appear."""

    def __init__(self):
        self.elements: list[str] = []
        self.rules: list[str] = []

    def add(self, element: str, appears: float = 0, cycle: float = 0) -> None:
        """Add an element, hidden for the share `appears` (0 to 1) of each cycle. cycle: in seconds."""
        if appears:
            name, percent = f"appear-{len(self.rules)}", 100 * appears
            self.rules.append(
                f"@keyframes {name}{{0%,{percent:.1f}%{{opacity:.1}}{percent + 0.1:.1f}%,100%{{opacity:1}}}}"
            )
            element = element.replace(" ", f' style="animation:{name} {cycle}s infinite" ', 1)
        self.elements.append(element)

    def bar(self, start: float, end: float, y: int, colour: str, text: str, appears: float) -> None:
        width = end - start
        box = f'<rect x="{start:.1f}" y="{y}" width="{width:.1f}" height="22" fill="{colour}" stroke="#fff"/>'
        if len(text) * 7 < width:
            middle, ink = start + width / 2, ink_on(colour)
            box += f'<text x="{middle:.1f}" y="{y + 15}" text-anchor="middle" fill="{ink}">{text}</text>'
        self.add(f"<g >{box}</g>", appears, STEP_SECONDS)


def picture() -> str:
    """The animation as HTML in Markdown."""
    drawing, losses = Drawing(), recorded_losses()
    _draw_step(drawing)
    _draw_losses(drawing, losses)
    gap = max(abs(loss - losses[1][step]) for step, loss in losses[2].items())
    difference = f"differ by at most {gap:.6f}" if gap else "agree in every digit"
    text = (
        "Above, a step of two ranks as ddp_course.predict computes it: backward fills buckets of gradients, and a full "
        "one is sent while backward goes on. Below, losses that notebook 04 recorded, with one process (wide line) and "
        f"with two (narrow line); printed with six decimals they {difference}."
    )
    style = "".join(drawing.rules) + STILL
    return PAGE.format(text=text, width=WIDTH, style=style, drawn="".join(drawing.elements))


def _draw_step(drawing: Drawing) -> None:
    ddp = ddp_from(predict_parser().parse_args(JOB.split()))
    step = ddp.step(ddp.middle)
    computed = {event["name"]: event for event in step.events if event["kind"] == "compute"}
    sent = [event for event in step.events if event["kind"] == "communication"]
    backward = backward_by_bucket(step)
    labels = [(computed["forward"], "forward"), *((event, event["text"]) for event in backward)]
    labels.append((computed["optimizer"], ""))
    lanes = [("rank 0", 4, RANK_COLOURS[0], labels), ("link", 34, NEUTRAL, [(event, event["name"]) for event in sent])]
    lanes.append(("rank 1", 64, RANK_COLOURS[1], labels))
    scale = (WIDTH - LEFT) / step.seconds
    for name, y, colour, events in lanes:
        drawing.add(f'<text x="0" y="{y + 15}">{name}</text>')
        for event, text in events:
            start, end = LEFT + scale * event["start"], LEFT + scale * event["end"]
            drawing.bar(start, end, y, colour, text, event["start"] / step.seconds)


def _draw_losses(drawing: Drawing, losses: dict[int, dict[int, float]]) -> None:
    every = [loss for curve in losses.values() for loss in curve.values()]
    highest, lowest, last = max(every), min(every), max(losses[2])

    def at(step: int, loss: float) -> tuple[float, float]:
        share = (highest - loss) / (highest - lowest)
        return LEFT + 6 + (WIDTH - LEFT - 20) * step / last, TOP + share * (BOTTOM - TOP)

    drawing.add(f'<text x="0" y="{TOP + 5}">loss {highest:.1f}</text>')
    drawing.add(f'<text x="28" y="{BOTTOM + 5}">{lowest:.1f}</text>')
    for processes, stroke in ((1, 'stroke="#56B4E9" stroke-width="10"'), (2, 'stroke="#D55E00" stroke-width="3"')):
        points = list(losses[processes].items())
        for number, (begin, end) in enumerate(zip(points, points[1:], strict=False), start=1):
            (x1, y1), (x2, y2) = at(*begin), at(*end)
            line = f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke-linecap="round" {stroke}/>'
            drawing.add(line, number / len(points), STEP_SECONDS * len(points))
    for step in losses[2]:
        drawing.add(f'<text x="{at(step, lowest)[0]:.1f}" y="{BOTTOM + 24}" text-anchor="middle">{step}</text>')
    drawing.add(f'<text x="0" y="{BOTTOM + 24}">step</text>')


def add_picture(app: Sphinx, name: str, source: list[str]) -> None:
    if "{{ picture }}" in source[0]:
        source[0] = source[0].replace("{{ picture }}", picture())


def setup(app: Sphinx) -> dict:
    app.connect("source-read", add_picture)
    return {"parallel_read_safe": True}
