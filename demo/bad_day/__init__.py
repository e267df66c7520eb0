"""A node on simulated GPUs that has a bad day, and a Prometheus that scrapes it. It shows the pages at work."""
