"""The checks of the doctor: each asks for facts and yields findings, each with its remedy.

Rule 1: a finding is OK only when the facts show it. A fact that could not be read counts as the worst case. Exception:
        another broken finding already says why it could not be read.
Rule 2: each check that was made has a finding, also when all is well: a report shows what was checked.

A new check is a function with ``@check`` in one of these files, in the order of a report. It reads nothing but facts.
"""
