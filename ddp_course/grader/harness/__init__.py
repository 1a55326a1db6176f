"""The part of the grader that starts the ranks and runs inside them. It does not import the checks or the judge."""
