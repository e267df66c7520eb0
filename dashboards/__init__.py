"""Dashboards as code, alert rules and runbooks. Not written yet; this package keeps its place and its contracts."""
