"""What a scrub of a real GPU costs, part by part: ``python -m benchmarks.trial``."""
