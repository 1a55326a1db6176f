"""The rungs of the equivalence ladder by topic; `ladder_ddp.py` runs them. Start with comparison.py."""
