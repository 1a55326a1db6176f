"""What every other room may import: the error for bad input, files that are replaced whole, JSON, quantities."""
