"""The authors' commands: see commands.py."""

from ddp_course.authoring.commands import main
from ddp_course.base.command import run_command

run_command(main)
