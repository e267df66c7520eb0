"""Dashboards as code (``build``) and as they are committed (``shipped``), alert rules and runbooks."""
