"""Measures on a real GPU what a scrub costs, part by part: ``python -m benchmarks.trial``."""
