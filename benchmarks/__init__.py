"""Measurements of the real service on simulated GPUs: ``make bench``. Nothing here is imported by the product."""
