"""The package behind the course: what a learner would keep (models, data, parallel) and what a notebook uses (lab)."""
