"""Deeds on a free device. A step changes the device, is safe to run twice, reports, never decides, knows no other step.

Steps run in a child process that the engine can kill, forked from the ``zygote``; ``worker`` is its hand on that
child.
"""
