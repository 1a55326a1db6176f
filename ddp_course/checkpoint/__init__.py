"""Run directories and checkpoints: save, verify and resume."""
