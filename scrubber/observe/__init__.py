"""Observes devices: their holders, health, owners and uses, and who may open them by the fence."""
