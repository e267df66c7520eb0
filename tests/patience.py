"""How long a test waits for what must come about. A miss is a failure; how fast this machine is says the benchmark."""

WITHIN = 120.0  # seconds
