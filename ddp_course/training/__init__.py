"""The parts that all trainers share: command line, run directory, checkpoints and progress."""
