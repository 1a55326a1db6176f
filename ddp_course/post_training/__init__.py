"""What the scripts after pre-training share: where a trained model comes from, and how its answers are judged."""
