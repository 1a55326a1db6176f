"""What the grader runs inside the ranks. It knows torch and the learner's answer, and nothing else of ours."""
