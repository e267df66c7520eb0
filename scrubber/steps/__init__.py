"""Deeds on a free device. A step changes the device, is safe to run twice, reports, never decides, knows no other step.

Steps run in a child process (``python -m scrubber.steps``) that the engine can kill; ``worker`` is the engine's hand
on that child.
"""
