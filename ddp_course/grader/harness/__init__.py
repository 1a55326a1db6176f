"""The part of the grader that runs inside the ranks. It knows torch and the learner's answer, nothing else of ours."""
