"""Simulated GPUs, made of files. They ship with the product and can fail in each way that a real GPU can.

A simulated GPU is a directory. ``memory`` is its memory, so a process that has it open is a holder: a file, or the node
of a loop device (``loops``). ``scratch`` is the on-chip memory; a process that has only this file open is not a holder.
The other files are its counters, settings and faults, which ``autoclave simulate`` may change while the service runs.
"""
