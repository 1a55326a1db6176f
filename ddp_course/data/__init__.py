"""What it is trained on: corpora, tokenizers, token files, windows and streams."""
