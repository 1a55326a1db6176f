"""The command that predicts a step of plain DDP; all of it is in `ddp_course.plan`."""
