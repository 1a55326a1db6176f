"""Basics that every other room may import: the error for bad input, atomic and JSON files, command lines, numbers."""
