"""How long a test waits for an event. Only a failing test reaches this limit: the benchmarks measure speed."""

import os

WITHIN = float(
    os.environ.get("AUTOCLAVE_TESTS_WAIT", "120")
)  # seconds; longer in a machine whose system calls are slow
