"""Training data: corpora, tokenizers, token files, windows and streams."""
