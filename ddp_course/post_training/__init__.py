"""Post-training: load pretrained models, fine-tune them, sample completions and score them."""
