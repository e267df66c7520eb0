"""Is this node able to keep the promise? Facts go in; findings come out, each with its remedy.

Rule 1: a finding is OK only when the facts show it. What could not be read counts as the worst that it may be, unless
        another broken finding says why already.
Rule 2: a check that could be made has a finding, so that a report shows what was checked.

A new check is a function in the ``CHECKS`` of its file. The caller gathers what it needs, as a field of ``NodeFacts``;
checks read nothing themselves.
"""
