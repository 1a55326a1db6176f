"""The package of the course; README.md says what stands in which folder."""
