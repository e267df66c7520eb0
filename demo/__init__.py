"""The demo: a story told on simulated GPUs, with every promise checked. For a checkout; it is not installed.

``standins`` is a kubelet, an API server and the programs around them, for the demo and for tests.
"""
