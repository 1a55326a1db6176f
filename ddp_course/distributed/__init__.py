"""What makes N processes one training run."""
