"""Explains a job that hangs or dies: which rank, which collective, which line; `python -m ddp_doctor`."""
