"""The verbs of the command line. Each is a function with its own name."""
