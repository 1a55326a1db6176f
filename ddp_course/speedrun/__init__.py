"""Pre-training, reward model and GRPO in one command, and its report."""
