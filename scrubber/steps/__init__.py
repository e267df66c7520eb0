"""The steps of a scrub: a step changes a free device, is safe to run twice, reports, and decides nothing.

No step knows another step. Steps run in a worker process that the service can kill.
"""
