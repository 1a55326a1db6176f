"""The grader on trial: wrong and right answers to every exercise, and which check catches which."""
