"""GPUs made of files: first-class, shipped, able to fail every promise.

A simulated GPU is a directory. ``memory`` is its memory, so a process that has it open is using the GPU; ``scratch`` is
the memory on its chip, which alone makes nobody a user; the small files beside them are its counters, settings and
faults, which another shell may change under a running service.
"""
