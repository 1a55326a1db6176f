"""minigpt_ddp.py, but Python looks for garbage as often as it does by itself."""

from ddp_course import minigpt_ddp
from ddp_course.training import process

process.collect_garbage_seldom = lambda: None
process.prepare_process()
minigpt_ddp.run(minigpt_ddp.train, minigpt_ddp.PRESETS)
