"""How long a test waits for an event. Only a failing test reaches this limit: the benchmarks measure speed."""

WITHIN = 120.0  # seconds
