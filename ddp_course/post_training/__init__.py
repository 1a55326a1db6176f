"""Post-training: load a pretrained model, sample completions, and score them."""
