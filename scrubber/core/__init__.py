"""Decisions, values in, values out: no I/O, no clock, no randomness, no event loop, no logging.

Time, ids and random bytes come in as arguments. ``service`` and ``jobs`` carry the decisions out, and write the events
to the ledger.
"""
