"""The demo: a story told on simulated GPUs, with every promise checked."""
