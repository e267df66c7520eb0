"""Receipts that others can check: signed documents, and a log that shows when rows are missing."""
