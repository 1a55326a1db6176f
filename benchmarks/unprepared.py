"""minigpt_ddp.py without one effect of `prepare_process`, which the variable WITHOUT names."""

import os

from ddp_course import minigpt_ddp
from ddp_course.training import process

effect = os.environ.get("WITHOUT", "keep_freed_memory")
if effect not in vars(process):
    raise SystemExit(f"prepare_process has no effect {effect!r}")
setattr(process, effect, lambda: None)
process.prepare_process()
minigpt_ddp.run(minigpt_ddp.train, minigpt_ddp.PRESETS)
