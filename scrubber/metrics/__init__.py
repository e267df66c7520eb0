"""Counters, histograms and gauges of the scrub service, and the table of their names."""
