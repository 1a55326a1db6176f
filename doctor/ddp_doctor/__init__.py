"""Explains a job that hangs, dies or trains wrongly: which rank, collective and line. Run `python -m ddp_doctor`."""
