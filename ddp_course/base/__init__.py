"""The ground floor, which every other room may import: the error for bad input, atomic files, JSON, quantities."""
