"""Observes devices: their holders, health, owners and uses."""
