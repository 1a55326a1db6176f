"""Authors' commands: run notebooks, derive exercises from solutions, make slides and variants of exercises."""
