"""The grader on trial: wrong and right answers to every question (answers/), and which check catches which."""
