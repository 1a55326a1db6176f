"""What a run leaves on disk: its folder, its checkpoints, and how it goes on from them."""
