"""What it is trained on: corpora, tokenizers, token files and windows."""
