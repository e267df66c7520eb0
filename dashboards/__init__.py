"""Dashboards as Python code (``build``) and as committed JSON (``shipped``), with alert rules."""
