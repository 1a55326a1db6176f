"""minigpt_ddp.py with the C library's own limits: memory that tensors leave may go back to the system."""

from ddp_course import minigpt_ddp
from ddp_course.training import command_line

command_line.keep_freed_memory = lambda: False
command_line.run(minigpt_ddp.train, minigpt_ddp.PRESETS)
