"""What a notebook uses: the launcher, the figures, predictions and checks. Never imported inside a rank."""
