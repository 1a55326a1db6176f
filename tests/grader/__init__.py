"""Tests of the grader: wrong and right answers to every exercise, and which check catches which."""
