"""Is this node able to keep the promise? Facts go in; findings come out, each with its remedy.

Rule 1: a finding is OK only when the facts show it. A fact that could not be read counts as the worst case. Exception:
        another broken finding already says why it could not be read.
Rule 2: each check that was made has a finding, also when all is well: a report shows what was checked.

A new check is a function in one of these files and a name in ``all_checks``. The caller gathers what it needs, as a
field of ``NodeFacts``; checks read nothing themselves.
"""
