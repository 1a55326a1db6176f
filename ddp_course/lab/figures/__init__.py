"""The figures of the course, in one style. Importing this package applies the style.

Every function that draws takes a title that states the finding, and returns a CourseFigure (see style.py). A cell
shows it once, as its last expression.

From a shell: python -m ddp_course.lab.figures RUN_DIR
"""

from ddp_course.lab.figures.animation import animation
from ddp_course.lab.figures.charts import bars, loss_curves, read_metrics
from ddp_course.lab.figures.choices import choices
from ddp_course.lab.figures.exchange import collective
from ddp_course.lab.figures.lives import lives
from ddp_course.lab.figures.roofline import roofline
from ddp_course.lab.figures.stacked import stacked_bars
from ddp_course.lab.figures.started import collectives_started
from ddp_course.lab.figures.style import rank_colour
from ddp_course.lab.figures.timeline import rank_lanes

__all__ = [
    "animation",
    "bars",
    "choices",
    "collective",
    "collectives_started",
    "lives",
    "loss_curves",
    "rank_colour",
    "rank_lanes",
    "read_metrics",
    "roofline",
    "stacked_bars",
]
