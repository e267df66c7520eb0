"""A node that has a bad day on simulated GPUs, and a Prometheus that watches it: for whoever tries the pages."""
