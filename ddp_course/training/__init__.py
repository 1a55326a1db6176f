"""What any trainer needs, also with one process: its command line, run directory, checkpoints and progress."""
