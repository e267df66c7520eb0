"""Is this node able to keep the promise? Facts in, findings out, each with its remedy.

Rule 1: a finding is OK only when it was seen to be so. What cannot be looked at is as bad as it might be, and has no
        finding of its own where a broken one that says why stands for it.
Rule 2: a check that could be made says something, so that a report tells what was looked at.

A new check is a function in the ``CHECKS`` of its file; what it needs is gathered by whoever asks, and is a field of
``Facts``. Nothing here looks at anything.
"""
