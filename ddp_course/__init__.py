"""The package of the course; ARCHITECTURE.md lists its folders."""

import sys

from ddp_course.base.command import begin_command

if sys.argv[:1] == ["-m"]:  # `python -m ddp_course...` is about to load a command, which may take seconds
    begin_command()
