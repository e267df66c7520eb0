"""Decisions. Values in, values out: no I/O, no clock, no randomness, no event loop, no logging.

Time, ids and random bytes come in as arguments. What is decided here is done in ``steps`` and ``devices`` and
remembered in ``ledger``.
"""
