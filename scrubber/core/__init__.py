"""Decisions. Values in, values out: no I/O, no clock, no randomness, no event loop, no logging.

Time, ids and random bytes come in as arguments. Decisions made here are carried out in ``steps`` and
``devices`` and stored in ``ledger``.
"""
