"""An animation: several figures shown one after the other in one place."""

import io

from ddp_course.base.errors import InputError
from ddp_course.lab.figures.style import in_few_colours

SECONDS, LAST_SECONDS = 1.2, 4.0


class Animation:
    """Figures of one size as an animated PNG, in an endless loop. It needs no JavaScript and no server.

    A viewer that cannot play animated PNGs shows the first picture.
    """

    def __init__(self, pictures: list, seconds: float):
        self.title, self.pictures, self.seconds = pictures[0].title, pictures, seconds

    def _repr_png_(self):
        drawn = in_few_colours([picture.drawn() for picture in self.pictures])
        durations = [round(1000 * self.seconds)] * (len(drawn) - 1) + [round(1000 * LAST_SECONDS)]
        buffer = io.BytesIO()
        drawn[0].save(buffer, "PNG", save_all=True, append_images=drawn[1:], duration=durations, loop=0, optimize=True)
        return buffer.getvalue(), self.pictures[0].on_the_page()

    def __repr__(self):
        return f"Figure: {self.title}"


def animation(pictures: list, seconds: float = SECONDS) -> Animation:
    """An Animation of `pictures`, figures of one size and title, each shown for `seconds`, the last for LAST_SECONDS.

    Raises InputError for fewer than two pictures, or for pictures of several sizes or titles.
    """
    kinds = {(picture.title, *picture.get_size_inches().tolist()) for picture in pictures}
    if len(pictures) < 2 or len(kinds) != 1:
        raise InputError(
            f"An animation needs two pictures or more, of one title and one size; "
            f"got {len(pictures)} picture(s) of {len(kinds)} kinds."
        )
    return Animation(list(pictures), seconds)
