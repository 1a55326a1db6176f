"""The networks that are trained: MiniGPT, the puzzle model and the reward model's head; and sampling of texts."""
