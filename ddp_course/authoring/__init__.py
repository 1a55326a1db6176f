"""Runs the notebooks, stores their outputs, and derives the exercises from the solutions."""
