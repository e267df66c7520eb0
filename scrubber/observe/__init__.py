"""Observes devices: the observer, the cache of its observations, and the release of the driver during a reset."""
